"""What came of the runs: a row per arm with intervals over seeds, and in words which differences are beyond luck."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from statistics import fmean
from typing import Literal

from grpo.cli.compare.arms import Job
from grpo.cli.compare.student import Interval, mean_interval, paired_interval
from grpo.config import Config
from grpo.errors import GrpoError
from grpo.model.plan import Work, find_shape, flops, needs
from grpo.record.store import Run

Measure = Literal["accuracy", "reward_mean"]
LAST_SHARE = 0.1
"""The end of a run over which its training reward is averaged."""


@dataclass(frozen=True)
class Finished:
    """What one run recorded, step by step."""

    seed: int
    rewards: Sequence[float]
    tokens: Sequence[float]
    """Sampled so far."""
    seconds: Sequence[float]
    """Spent in training so far, evaluations not counted."""
    evals: Sequence[tuple[int, float]]
    """(steps taken, held-out accuracy); the mean reward instead where the run has no accuracy."""
    problems: int
    """Asked in an evaluation."""
    memory: float
    """Bytes at the worst moment."""
    operations: float
    """Predicted from the lengths that came and the groups that were trained on, all steps together."""
    measure: Measure = "accuracy"
    """What `evals` holds."""

    @property
    def held_out(self) -> float:
        """At the end."""
        return self.evals[-1][1]

    @property
    def reward(self) -> float:
        last = max(1, round(LAST_SHARE * len(self.rewards)))
        return fmean(self.rewards[-last:])


def read(job: Job) -> Finished:
    with Run.open(job.folder, job.name, readonly=True) as run:
        rows, evals = run.metrics(), run.evals()
        seconds: dict[int, float] = {}
        for span in run.spans():
            seconds[span["step"]] = seconds.get(span["step"], 0.0) + span["seconds"]
        measure: Measure = "accuracy" if all(row["accuracy"] is not None for row in evals) else "reward_mean"
        return Finished(
            seed=job.seed,
            rewards=rewards_of(rows),
            tokens=list(accumulate(row["tokens"] for row in rows)),
            seconds=list(accumulate(seconds[row["step"]] for row in rows)),
            evals=[(row["step"], row[measure] or 0.0) for row in evals],
            measure=measure,
            problems=len(run.eval_groups(evals[-1]["step"])),
            memory=max(row["peak_memory"] for row in rows),
            operations=operations(job, run, rows),
        )


def rewards_of(rows: Sequence[Mapping[str, float | None]]) -> list[float]:
    """By step. One without a scored completion has none, and stays where it was.

    >>> rewards_of([{"reward_mean": 0.5}, {"reward_mean": None}, {"reward_mean": 0.25}])
    [0.5, 0.5, 0.25]
    """
    rewards: list[float] = []
    for row in rows:
        found = row["reward_mean"]
        rewards.append(found if found is not None else rewards[-1] if rewards else 0.0)
    return rewards


def operations(job: Job, run: Run, rows: Sequence[Mapping[str, float]]) -> float:
    """Of all steps; 0 where the model's shape is not known."""
    try:
        shape = find_shape(run.config["model"])
    except GrpoError:  # border: a folder people made
        return 0.0
    config, needed = job.config, needs(job.config.loss, job.config.critic)
    prompt = fmean(len(group["prompt"]) for group in run.groups(0)) / (3 if shape.vocabulary > 1000 else 1)
    work = Work.of(config, max(1, round(prompt)))
    total = 0.0
    for row in rows:
        length, shares = row["length_mean"], phase_shares(row, config)
        # Between two whole lengths, in proportion.
        low, high = (
            sum(
                shares.get(phase, 1.0) * count
                for phase, count in flops(shape, replace(work, new_tokens=max(1, tokens)), needed).items()
            )
            for tokens in (math.floor(length), math.ceil(length))
        )
        total += low + (high - low) * (length % 1)
    return total


def phase_shares(row: Mapping[str, float], config: Config) -> dict[str, float]:
    """How much of a full step's work each phase was: groups drawn again are sampled, those left out not trained on."""
    loss, asked = config.loss, config.prompts_per_step
    there = (row.get("groups_kept") or asked) / asked
    all_teach = (loss.beta and loss.kl_in == "loss") or loss.entropy or loss.baseline == "value"
    taught = there if all_teach else there * (row.get("gradient_tokens") or 0.0)
    drawn = row.get("groups_drawn", asked) / asked
    return {"rollout": drawn, "reference": there, "critic": there, "old policy": taught, "update": taught}


MEASURES: Mapping[str, Callable[[Finished], float]] = {
    "held_out": lambda run: run.held_out,
    "reward": lambda run: run.reward,
    "tokens": lambda run: run.tokens[-1],
    "seconds": lambda run: run.seconds[-1],
    "memory": lambda run: run.memory,
    "operations": lambda run: run.operations,
}


def summarise(arms: Mapping[str, Sequence[Finished]]) -> dict[str, dict[str, Interval]]:
    """By arm and measure: the mean over seeds with its 95% interval."""
    found = {
        arm: {name: mean_interval([measure(run) for run in runs]) for name, measure in MEASURES.items()}
        for arm, runs in arms.items()
    }
    if measure_of(arms) == "accuracy":
        for rows in found.values():
            if math.isfinite(rows["held_out"].low):
                rows["held_out"] = within(rows["held_out"], 0.0, 1.0)
    return found


def measure_of(arms: Mapping[str, Sequence[Finished]]) -> Measure:
    """What the arms are compared by: all have the same task and rewards."""
    return next(run.measure for runs in arms.values() for run in runs)


def within(found: Interval, least: float, most: float) -> Interval:
    """A share cannot be below 0 or above 1, whatever two seeds suggest."""
    return Interval(found.mean, max(least, found.low), min(most, found.high))


@dataclass(frozen=True)
class Difference:
    """Held-out accuracy (or reward) of one arm minus another's, seed by seed."""

    better: str
    worse: str
    interval: Interval

    @property
    def is_clear(self) -> bool:
        return self.interval.low > 0


def differences(arms: Mapping[str, Sequence[Finished]]) -> list[Difference]:
    """All pairs. Their intervals hold all together with 95%: each alone is wider, the more pairs there are."""
    pairs = list(combinations(arms, 2))
    level = 1 - 0.05 / max(1, len(pairs))
    found = []
    for pair in pairs:
        better, worse = sorted(pair, key=lambda arm: fmean(run.held_out for run in arms[arm]), reverse=True)
        ours, theirs = ([run.held_out for run in arms[arm]] for arm in (better, worse))
        if measure_of(arms) != "accuracy":
            found.append(Difference(better, worse, paired_interval(ours, theirs, level)))
            continue
        problems = arms[better][0].problems
        # Three seeds may agree by chance more closely than so many problems can measure at all.
        luck = sum(share * (1 - share) / problems for share in (fmean(ours), fmean(theirs))) / len(ours)
        interval = paired_interval(ours, theirs, level, math.sqrt(luck))
        found.append(Difference(better, worse, within(interval, -1.0, 1.0) if len(ours) > 1 else interval))
    return found


def in_words(arms: Mapping[str, Sequence[Finished]]) -> list[str]:
    """Plain sentences on held-out accuracy, or on the held-out reward of runs without accuracy."""
    seeds = min(len(runs) for runs in arms.values())
    if seeds < 2:
        return ["One seed each: what differs here may be luck, and nothing can be told; add seeds (--seeds 3)."]
    found, judged = differences(arms), measure_of(arms) == "accuracy"
    form, what = ("{:.1%}", "held-out problems") if judged else ("{:.3f}", "held-out reward")

    def interval(each: Difference) -> str:
        return f"[{form.format(each.interval.low)} to {form.format(each.interval.high)}]"

    clear, unclear = ([each for each in found if each.is_clear == side] for side in (True, False))
    sentences = [
        f"{each.better} is better than {each.worse} by {form.format(each.interval.mean)} of {what} {interval(each)}, "
        "beyond luck."
        for each in sorted(clear, key=lambda each: -each.interval.mean)
    ]
    if unclear:
        widest = max(unclear, key=lambda each: each.interval.mean)
        rest = "No difference" if not clear else f"No other difference ({len(unclear)} pairs)"
        sentences.append(
            f"{rest} can be told from luck with {seeds} seeds; the largest of them is {widest.better} over "
            f"{widest.worse}, {form.format(widest.interval.mean)} {interval(widest)}."
        )
    return sentences
