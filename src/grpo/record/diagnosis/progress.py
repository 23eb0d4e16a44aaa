"""Findings in the reward over the run, and in held-out accuracy beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from grpo.record.diagnosis.history import LONG_WINDOW, PAST, SAMPLED_STEPS, WINDOW, Finding, History, mean

LEAST_REWARD = 0.02
"""Lowest mean reward from which a fall counts; a lower one is a lucky answer or two."""
LEAST_REWARD_SHORT = 0.1
"""The same for a mean over three steps."""


LEAST_JUDGED = 8
"""Right completions, and wrong ones, whose rewards are compared."""


def reward_hacking(history: History) -> Finding | None:
    """The reward and `correct` disagree: accuracy falls while the reward rises, or wrong completions earn more."""
    return accuracy_fell(history) or wrong_earn_more(history)


def wrong_earn_more(history: History) -> Finding | None:
    """Wrong completions have a higher mean reward than right ones, by two standard errors."""
    scored = [done for group in history.groups for done in group["completions"] if done["reward"] is not None]
    wrong, right = ([done["reward"] for done in scored if done["correct"] is verdict] for verdict in (False, True))
    if min(len(wrong), len(right)) < LEAST_JUDGED:
        return None
    error = (stdev(wrong) ** 2 / len(wrong) + stdev(right) ** 2 / len(right)) ** 0.5
    gap = fmean(wrong) - fmean(right)
    if gap <= 2 * error:
        return None
    return history.found(
        "reward_hacking",
        gap,
        f"wrong completions earn {fmean(wrong):.2f} on average and right ones {fmean(right):.2f} (the reward measures "
        "something else than the task)",
        "read the wrong completions with the highest reward, and change the reward",
    )


def accuracy_fell(history: History) -> Finding | None:
    """Held-out accuracy has fallen from its best by more than its interval, the training reward has risen since, and
    the training accuracy has not: what rose is not what counts as correct."""
    if (fall := Fall.of(history)) is None or fall.accuracy_rose:
        return None
    return history.found(
        "reward_hacking",
        fall.latest["accuracy"],
        f"{fall} (the reward measures something else than the task)",
        "read the groups with the highest reward, and keep the best checkpoint (grpo export --best)",
    )


def overfitting(history: History) -> Finding | None:
    """The same, but the training accuracy has risen with the reward: the reward agrees with `correct`."""
    if (fall := Fall.of(history)) is None or not fall.accuracy_rose:
        return None
    return history.found(
        "overfitting",
        fall.latest["accuracy"],
        f"{fall}, and the accuracy on training problems with it (the policy overfits them)",
        "keep the best checkpoint (grpo export --best); train on more problems or for fewer steps",
    )


@dataclass(frozen=True)
class Fall:
    """Held-out accuracy at its best and now, and the means of ten training steps at both times."""

    best: Mapping[str, Any]
    latest: Mapping[str, Any]
    reward: tuple[float, float]
    accuracy_rose: bool

    @classmethod
    def of(cls, history: History) -> Fall | None:
        """None: the intervals overlap, or the training reward has not risen."""
        evals = [row for row in history.evals if row.get("accuracy") is not None]
        if len(evals) < 2:
            return None
        best, latest = max(evals, key=lambda row: row["accuracy"]), evals[-1]
        near = slice(max(0, best["step"] - WINDOW // 2), best["step"] + WINDOW // 2 + 1)
        rewards, accuracies = _known(history.rewards[near]), _known(history.accuracies[near])
        now, right = mean(history.last("reward_mean")), mean(history.last("accuracy"))
        if best["low"] <= latest["high"] or not rewards or now <= fmean(rewards):
            return None
        return cls(best, latest, (fmean(rewards), now), bool(accuracies) and right > fmean(accuracies))

    def __str__(self) -> str:
        return (
            f"held-out accuracy has fallen from {self.best['accuracy']:.0%} (after {self.best['step']} steps) to "
            f"{self.latest['accuracy']:.0%} while the training reward rose from {self.reward[0]:.2f} to "
            f"{self.reward[1]:.2f}"
        )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def reward_flat(history: History) -> Finding | None:
    if len(history) < 3 * LONG_WINDOW or history.is_solved:
        return None
    before, now = history.first("reward_mean", LONG_WINDOW), history.last("reward_mean", LONG_WINDOW)
    if min(len(before), len(now)) < LONG_WINDOW:
        return None
    error = ((stdev(before) ** 2 + stdev(now) ** 2) / LONG_WINDOW) ** 0.5
    if abs(fmean(now) - fmean(before)) > 2 * error:
        return None
    return history.found(
        "reward_flat",
        fmean(now),
        f"the reward has not moved ({fmean(before):.3f} at first, {fmean(now):.3f} now)",
        "raise lr, check whether groups have unequal rewards (zero_signal_groups), and read a few completions",
    )


def reward_fall(history: History) -> Finding | None:
    """The mean of three steps is a quarter of its best or less, beyond chance or with no signal left; or the mean of
    ten steps is half its best or less, beyond chance."""
    if None in history.rewards:
        return None
    best, now = history.best, mean(history.last("reward_mean"))
    short, newest = history.best_short, mean(history.last("reward_mean", SAMPLED_STEPS))
    assert best.mean is not None
    assert short.mean is not None
    no_signal = mean(history.last("zero_signal_groups", SAMPLED_STEPS)) >= 0.9
    sudden = no_signal or _beyond_chance(history, short.mean - newest, SAMPLED_STEPS)
    if short.mean >= LEAST_REWARD_SHORT and newest <= 0.25 * short.mean and sudden:
        fell_to, fell_from, after = newest, short.mean, short.after
    elif best.mean >= LEAST_REWARD and now <= 0.5 * best.mean and _beyond_chance(history, best.mean - now, WINDOW):
        fell_to, fell_from, after = now, best.mean, best.after
    else:
        return None
    return history.found(
        "reward_fall",
        fell_to,
        f"the reward has fallen to {fell_to:.2f} from {fell_from:.2f} (after {after} steps), probably because lr is "
        "too high",
        "lower lr, and start again from an earlier checkpoint",
    )


def _beyond_chance(history: History, fallen: float, steps: int) -> bool:
    """Whether the mean over this many steps has fallen by two standard errors. They are the largest that there may be:
    as if the completions of a prompt were all alike."""
    prompts = steps * history.setting("prompts_per_step", 1)
    spread = max([*history.first("reward_std"), *history.last("reward_std", PAST)], default=0.0)
    return fallen > 2 * spread * (2 / prompts) ** 0.5
