"""Findings in the reward over the run, and in held-out accuracy beside it."""

from __future__ import annotations

from statistics import fmean, stdev

from grpo.record.diagnosis.record import WINDOW, Finding, Record, mean

LEAST_REWARD = 0.02
"""What lies below is a lucky answer or two, and nothing to fall from."""


def reward_hacking(record: Record) -> Finding | None:
    """Held-out accuracy has fallen beyond its interval since its best, and the training reward has not."""
    evals = [row for row in record.evals if row.get("accuracy") is not None]
    if len(evals) < 2:
        return None
    best, latest = max(evals, key=lambda row: row["accuracy"]), evals[-1]
    near = [row for row in record.steps if abs(row["step"] - best["step"]) <= WINDOW // 2]
    around = [row["reward_mean"] for row in near if row.get("reward_mean") is not None]
    if best["low"] <= latest["high"] or not around or mean(record.last("reward_mean")) <= fmean(around):
        return None
    return record.found(
        "reward_hacking",
        latest["accuracy"],
        f"held-out accuracy has fallen from {best['accuracy']:.0%} (after {best['step']} steps) to "
        f"{latest['accuracy']:.0%} while the training reward rose from {fmean(around):.2f} to "
        f"{mean(record.last('reward_mean')):.2f}: the reward pays for something else than the task; read the groups "
        "with the highest reward, and keep the best checkpoint (grpo export --best)",
    )


def reward_flat(record: Record) -> Finding | None:
    stretch = 20
    if len(record.steps) < 3 * stretch or record.is_solved:
        return None
    before, now = record.first("reward_mean", stretch), record.last("reward_mean", stretch)
    if min(len(before), len(now)) < stretch:
        return None
    error = ((stdev(before) ** 2 + stdev(now) ** 2) / stretch) ** 0.5
    if abs(fmean(now) - fmean(before)) > 2 * error:
        return None
    return record.found(
        "reward_flat",
        fmean(now),
        f"the reward has not moved, {fmean(before):.3f} then and {fmean(now):.3f} now: raise lr, look whether groups "
        "have unequal rewards (zero_signal_groups), and read a few completions",
    )


def reward_fall(record: Record) -> Finding | None:
    rewards = record.first("reward_mean", len(record.steps))
    if len(rewards) < len(record.steps):
        return None
    means = [fmean(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1)]
    best = max(range(len(means)), key=lambda i: means[i])
    if means[best] < LEAST_REWARD or means[-1] > 0.5 * means[best]:
        return None
    after = record.steps[best + WINDOW - 1]["step"] + 1
    return record.found(
        "reward_fall",
        means[-1],
        f"the reward is {means[-1]:.2f} and was {means[best]:.2f} after {after} steps: the learning rate is too high; "
        "lower lr and start again from before",
    )
