"""Results of the runs: a row per arm with intervals over seeds, and which differences are significant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from statistics import fmean
from typing import Literal

from grpo.cli.compare.intervals import Interval, mean_interval, paired_interval
from grpo.cli.compare.jobs import Job
from grpo.config import Config
from grpo.errors import GrpoError
from grpo.model.plan import Work, find_shape, flops, needs
from grpo.record.store import Run

Measure = Literal["accuracy", "reward_mean"]
LAST_SHARE = 0.1
"""Share of the steps, at the end, over which the training reward is averaged."""


@dataclass(frozen=True)
class RunResult:
    """The record of one run, by step."""

    seed: int
    rewards: Sequence[float]
    tokens: Sequence[float]
    """Tokens sampled up to the step."""
    seconds: Sequence[float]
    """Seconds of training up to the step, without evaluations."""
    evals: Sequence[tuple[int, float]]
    """(step, held-out accuracy); the mean reward if the run has no accuracy."""
    problems: int
    """Number of problems of an evaluation."""
    memory: float
    """Peak bytes."""
    operations: float
    """Floating-point operations of all steps, predicted from the recorded lengths and groups."""
    measure: Measure = "accuracy"
    """The quantity in `evals`."""

    @property
    def held_out(self) -> float:
        """The last evaluation."""
        return self.evals[-1][1]

    @property
    def reward(self) -> float:
        last = max(1, round(LAST_SHARE * len(self.rewards)))
        return fmean(self.rewards[-last:])


def read(job: Job) -> RunResult:
    with Run.open(job.folder, job.name, readonly=True) as run:
        rows, evals = run.metrics(), run.evals()
        seconds: dict[int, float] = {}
        for span in run.spans():
            seconds[span["step"]] = seconds.get(span["step"], 0.0) + span["seconds"]
        measure: Measure = "accuracy" if all(row["accuracy"] is not None for row in evals) else "reward_mean"
        return RunResult(
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
    """Mean reward by step. A step without a scored completion repeats the value before it.

    >>> rewards_of([{"reward_mean": 0.5}, {"reward_mean": None}, {"reward_mean": 0.25}])
    [0.5, 0.5, 0.25]
    """
    rewards: list[float] = []
    for row in rows:
        found = row["reward_mean"]
        rewards.append(found if found is not None else rewards[-1] if rewards else 0.0)
    return rewards


def operations(job: Job, run: Run, rows: Sequence[Mapping[str, float]]) -> float:
    """Floating-point operations of all steps; 0 if the model's shape is unknown."""
    try:
        shape = find_shape(run.config["model"])
    except GrpoError:  # border: a folder that any program may have written
        return 0.0
    config, needed = job.config, needs(job.config.loss, job.config.critic)
    prompt = fmean(len(group["prompt"]) for group in run.groups(0)) / (3 if shape.vocabulary > 1000 else 1)
    work = Work.of(config, max(1, round(prompt)))
    total = 0.0
    for row in rows:
        length, shares = row["length_mean"], phase_shares(row, config)
        # Linear interpolation between two whole lengths.
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
    """Share of a full step's work in each phase: replaced groups are sampled, not trained on."""
    loss, prompts = config.loss, config.prompts_per_step
    kept = (row.get("groups_kept") or prompts) / prompts
    all_trained = (loss.beta and loss.kl_in == "loss") or loss.entropy or loss.baseline == "value"
    trained = kept if all_trained else kept * (row.get("gradient_tokens") or 0.0)
    drawn = row.get("groups_drawn", prompts) / prompts
    return {"rollout": drawn, "reference": kept, "critic": kept, "old policy": trained, "update": trained}


MEASURES: Mapping[str, Callable[[RunResult], float]] = {
    "held_out": lambda run: run.held_out,
    "reward": lambda run: run.reward,
    "tokens": lambda run: run.tokens[-1],
    "seconds": lambda run: run.seconds[-1],
    "memory": lambda run: run.memory,
    "operations": lambda run: run.operations,
}


def summarise(arms: Mapping[str, Sequence[RunResult]]) -> dict[str, dict[str, Interval]]:
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


def measure_of(arms: Mapping[str, Sequence[RunResult]]) -> Measure:
    """The quantity that arms are compared by; it is the same for all."""
    return next(run.measure for runs in arms.values() for run in runs)


def within(found: Interval, least: float, most: float) -> Interval:
    """The interval cut to the possible range of a share."""
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


def differences(arms: Mapping[str, Sequence[RunResult]]) -> list[Difference]:
    """All pairs, with simultaneous 95% intervals (Bonferroni correction)."""
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
        # Few seeds may agree by chance more closely than the number of problems can resolve.
        sampling_variance = sum(share * (1 - share) / problems for share in (fmean(ours), fmean(theirs))) / len(ours)
        interval = paired_interval(ours, theirs, level, math.sqrt(sampling_variance))
        found.append(Difference(better, worse, within(interval, -1.0, 1.0) if len(ours) > 1 else interval))
    return found


def conclusions(arms: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """Sentences on held-out accuracy, or on the held-out reward of runs without accuracy."""
    seeds = min(len(runs) for runs in arms.values())
    if seeds < 2:
        return ["One seed each: differences may be chance; add seeds (--seeds 3)."]
    found, judged = differences(arms), measure_of(arms) == "accuracy"
    form, what = ("{:.1%}", "held-out problems") if judged else ("{:.3f}", "held-out reward")

    def interval(each: Difference) -> str:
        return f"[{form.format(each.interval.low)} to {form.format(each.interval.high)}]"

    clear, unclear = ([each for each in found if each.is_clear == side] for side in (True, False))
    sentences = [
        f"{each.better} is better than {each.worse} by {form.format(each.interval.mean)} of {what} {interval(each)}, "
        "statistically significant."
        for each in sorted(clear, key=lambda each: -each.interval.mean)
    ]
    if unclear:
        widest = max(unclear, key=lambda each: each.interval.mean)
        rest = "No difference" if not clear else f"No other difference ({len(unclear)} pairs)"
        sentences.append(
            f"{rest} is statistically significant with {seeds} seeds; the largest is {widest.better} over "
            f"{widest.worse}, {form.format(widest.interval.mean)} {interval(widest)}."
        )
    return sentences
