"""Findings in what was sampled: its length, its answers, its rewards part by part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from grpo.record.diagnosis.record import Finding, Record, mean


def truncated(record: Record) -> Finding | None:
    share = mean(record.last("truncated"))
    if share < 0.2:
        return None
    limit = record.setting("max_new_tokens", None)
    at = f" ({limit})" if limit else ""
    return record.found(
        "truncated",
        share,
        f"{share:.0%} of the completions are cut at max_new_tokens{at} and cannot finish: raise it, or pay for brevity "
        "(--loss.overlong 0.2)",
    )


def one_sided(record: Record) -> Finding | None:
    """Groups without any right answer, without any wrong one, or with rewards that are equal for another reason. Where
    rewards differ, a group teaches, right answers or none."""
    unscored = mean(record.last("unscored"))
    if unscored >= 0.5:
        return record.found(
            "no_signal",
            unscored,
            f"{unscored:.0%} of the completions have no reward and are not trained on: the reward returned None, or "
            "failed; mend it, or add one that applies to every completion (--reward)",
        )
    wrong, right = ([group for group in record.groups if _all(group, right=truth)] for truth in (False, True))
    wrong = [group for group in wrong if len({done["reward"] for done in group["completions"]}) == 1]
    none, every = (len(groups) / max(1, len(record.groups)) for groups in (wrong, right))
    if none >= 0.6:
        return record.found(
            "all_wrong",
            none,
            f"{none:.0%} of the groups have no right answer and teach nothing: ask easier problems, sample more per "
            "group (--group-size), or fine-tune first (grpo sft)",
            example=wrong[-1],
        )
    if every >= 0.95:
        return record.found(
            "all_right",
            every,
            f"{every:.0%} of the groups are all right and teach nothing: the problems are solved; stop, ask harder "
            "ones, or leave such groups out (--algorithm dapo)",
            example=right[-1],
        )
    level = mean(record.last("zero_signal_groups"))
    if level > 0.9 and not record.is_solved:
        return record.found(
            "no_signal",
            level,
            f"{level:.0%} of the groups have equal rewards and teach nothing, though not all are right or wrong: the "
            "reward does not tell their completions apart; let it grade more finely, or sample more per group "
            "(--group-size)",
        )
    return None


def _all(group: Mapping[str, Any], *, right: bool) -> bool:
    return all(done["correct"] is right for done in group["completions"])


def length_collapse(record: Record) -> Finding | None:
    before, now = mean(record.first("length_mean")), mean(record.last("length_mean"))
    gained = mean(record.last("reward_mean")) - mean(record.first("reward_mean"))
    if not before or gained > 0.05:
        return None
    if now <= 0.5 * before:
        return record.found(
            "length_collapse",
            now,
            f"completions have shrunk from {before:.1f} to {now:.1f} tokens and earn no more: check what the reward "
            "pays for short answers, and compare --loss.aggregate constant",
        )
    if now >= 2 * before:
        return record.found(
            "length_growth",
            now,
            f"completions have grown from {before:.1f} to {now:.1f} tokens and earn no more: padding; compare "
            "--algorithm dr_grpo, which favours no length",
        )
    return None


def duplicates(record: Record) -> Finding | None:
    """Wrong siblings that differ in nothing but case, spacing and punctuation. (Right ones may well be alike.)"""
    different, wrong, example = 0, 0, None
    for group in record.groups:
        texts = [done["text"] for done in group["completions"] if done["correct"] is False]
        if len(texts) > len(group["completions"]) / 2:
            different += len({re.sub(r"[\W_]+", " ", text).strip().casefold() for text in texts})
            wrong += len(texts)
            example = group
    completions = sum(len(group["completions"]) for group in record.groups)
    if not wrong or wrong < completions / 4 or different > wrong / 4:
        return None
    return record.found(
        "duplicates",
        different / wrong,
        f"of the wrong completions in mostly wrong groups, only {different / wrong:.0%} differ from their siblings: "
        "trying again brings nothing new; raise the temperature, or lower lr",
        example=example,
    )


def saturated_part(record: Record) -> Finding | None:
    """A part of the reward that is the same for nearly all completions, beside one that is not."""
    parts: dict[str, list[float]] = {}
    for group in record.groups:
        for done in group["completions"]:
            for name, value in done["parts"].items():
                if value is not None:
                    parts.setdefault(name, []).append(value)
    same = {name: Counter(values).most_common(1)[0] for name, values in parts.items()}
    shares = {name: count / len(parts[name]) for name, (_, count) in same.items()}
    if len(shares) < 2 or min(shares.values()) >= 0.95:
        return None
    name = max(shares, key=lambda part: shares[part])
    if shares[name] < 0.95:
        return None
    return record.found(
        "saturated_part",
        shares[name],
        f"reward part {name} is {same[name][0]:g} for {shares[name]:.0%} of the completions and tells them apart no "
        "longer: lower its weight (--loss.weights), or make it harder to earn",
    )
