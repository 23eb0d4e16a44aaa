"""Findings in the completions: their lengths, their answers, the parts of their rewards."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from grpo.record.diagnosis.history import Finding, History, mean

LIMITS = {
    "length": "max_new_tokens",
    "turn_length": "episodes.max_turn_tokens",
    "turns": "episodes.max_turns",
    "calls": "episodes.max_calls",
    "seconds": "episodes.max_seconds",
}
"""Setting of each limit that ends a completion, by its finish."""


def unscored(history: History) -> Finding | None:
    share = mean(history.last("unscored"))
    if share < 0.5:
        return None
    return history.found(
        "unscored",
        share,
        f"{share:.0%} of the completions have no reward (it returned None, or failed) and are not trained on",
        "fix it, or add a reward that applies to every completion (--reward)",
    )


def truncated(history: History) -> Finding | None:
    share = mean(history.last("truncated"))
    if share < 0.2:
        return None
    setting = LIMITS[max(LIMITS, key=lambda finish: mean(history.last(f"finish/{finish}")))]
    limit = history.setting(setting, None)
    at = f" ({limit})" if limit else ""
    shorter = ", or reward brevity (--loss.overlong 0.2)" if setting == "max_new_tokens" else ""
    return history.found(
        "truncated",
        share,
        f"{share:.0%} of the completions are cut at {setting}{at} and cannot finish",
        f"raise it{shorter}",
    )


def one_sided(history: History) -> Finding | None:
    """Groups whose completions are all wrong, all right, or rewarded equally for another reason. A group with unequal
    rewards teaches, even if no completion is right."""
    if unscored(history):
        return None
    wrong, right = ([group for group in history.groups if _all(group, right=truth)] for truth in (False, True))
    wrong = [group for group in wrong if len({done["reward"] for done in group["completions"]}) == 1]
    none, every = (len(groups) / max(1, len(history.groups)) for groups in (wrong, right))
    if none >= 0.6:
        return history.found(
            "all_wrong",
            none,
            f"{none:.0%} of the groups have no right answer and teach nothing",
            "use easier problems, sample more per group (--group-size), or fine-tune first (grpo sft)",
            example=wrong[-1],
        )
    if every >= 0.95:
        return history.found(
            "all_right",
            every,
            f"{every:.0%} of the groups are all right and teach nothing (the problems are solved)",
            "stop, use harder problems, or replace such groups (--algorithm dapo)",
            example=right[-1],
        )
    zero_signal = mean(history.last("zero_signal_groups"))
    if zero_signal > 0.9 and not history.is_solved:
        return history.found(
            "no_signal",
            zero_signal,
            f"{zero_signal:.0%} of the groups have equal rewards and teach nothing, though not all are right or wrong",
            "use a reward that grades more finely, or sample more per group (--group-size)",
        )
    return None


def _all(group: Mapping[str, Any], *, right: bool) -> bool:
    return all(done["correct"] is right for done in group["completions"])


def length_change(history: History) -> Finding | None:
    before, now = mean(history.first("length_mean")), mean(history.last("length_mean"))
    gained = mean(history.last("reward_mean")) - mean(history.first("reward_mean"))
    if not before or gained > 0.05:
        return None
    if now <= 0.5 * before:
        return history.found(
            "length_collapse",
            now,
            f"completions have shrunk from {before:.1f} to {now:.1f} tokens without a higher reward",
            "check which reward short answers earn, and try --loss.aggregate constant",
        )
    if now >= 2 * before:
        return history.found(
            "length_growth",
            now,
            f"completions have grown from {before:.1f} to {now:.1f} tokens without a higher reward (padding)",
            "try --algorithm dr_grpo, which favours no length",
        )
    return None


def duplicates(history: History) -> Finding | None:
    """Wrong completions of a group that differ only in case, spacing and punctuation. (Right ones may be alike.)"""
    different, wrong, example = 0, 0, None
    for group in history.groups:
        texts = [done["text"] for done in group["completions"] if done["correct"] is False]
        if len(texts) > len(group["completions"]) / 2:
            different += len({re.sub(r"[\W_]+", " ", text).strip().casefold() for text in texts})
            wrong += len(texts)
            example = group
    completions = sum(len(group["completions"]) for group in history.groups)
    if not wrong or wrong < completions / 4 or different > wrong / 4:
        return None
    return history.found(
        "duplicates",
        different / wrong,
        f"only {different / wrong:.0%} of the wrong completions in mostly wrong groups differ from each other",
        "raise the temperature, or lower lr",
        example=example,
    )


def saturated_part(history: History) -> Finding | None:
    """A part of the reward that is the same for nearly all completions, beside a part that varies.

    A part may give None: for the problems of another task, which say nothing about it, or for some completions of a
    group, which it distinguishes from the others, because None adds nothing to their reward."""
    scored, added = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for group in history.groups:
        every = [done["parts"] for done in group["completions"]]
        for name in {name: None for parts in every for name, value in parts.items() if value is not None}:
            values = [parts.get(name) for parts in every]
            scored[name] += [value for value in values if value is not None]
            added[name] += [value or 0.0 for value in values]
    shares = {name: min(_commonest(scored[name])[1], _commonest(added[name])[1]) for name in scored}
    if len(shares) < 2 or min(shares.values()) >= 0.95:
        return None
    completions = sum(len(group["completions"]) for group in history.groups)
    often = [name for name in shares if len(scored[name]) >= completions / 4]
    name = max(often, key=lambda part: shares[part], default="")
    if not name or shares[name] < 0.95:
        return None
    value, share = _commonest(scored[name])
    whole = len(scored[name]) == completions
    return history.found(
        "saturated_part",
        share,
        f"reward part {name} is {value:g} for {share:.0%} of the completions{'' if whole else ' it scored'} and no "
        "longer distinguishes them",
        "lower its weight (--loss.weights), or make it harder to earn",
    )


def _commonest(values: list[float]) -> tuple[float, float]:
    """The most common value and its share."""
    [(value, count)] = Counter(values).most_common(1)
    return value, count / len(values)
