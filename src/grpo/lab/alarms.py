"""Signs of trouble read off a record, each with the place to look at.

A rule compares the first tenth of the run with its last, so that one odd step raises nothing; a run of fewer than
20 steps raises nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from grpo.evaluation import is_right
from grpo.store import Run

FEWEST_STEPS = 20
SOLVED = 0.9
"""Accuracy above which a level group, a short answer or a certain policy is what success looks like."""


@dataclass(frozen=True)
class Alarm:
    title: str
    text: str
    why: str
    """Why it matters, and what to do."""
    view: str
    """Where the evidence is: a view of the run, and its state."""
    evidence: str
    query: dict[str, Any] = field(default_factory=dict)


class Ends:
    """The run's first and last tenth, by metric."""

    def __init__(self, run: Run):
        self.run = run
        last = run.last_step()
        self.steps = 0 if last is None else last + 1
        self.width = max(2, self.steps // 10)
        self.last_step = self.steps - 1

    def first(self, metric: str) -> float | None:
        return self._mean(metric, 0, self.width)

    def last(self, metric: str) -> float | None:
        return self._mean(metric, self.steps - self.width, self.steps)

    def _mean(self, metric: str, begin: int, end: int) -> float | None:
        [row] = self.run.select(
            "SELECT avg(value) AS mean FROM metrics WHERE name = ? AND step >= ? AND step < ?", metric, begin, end
        )
        return row["mean"]

    @property
    def solved(self) -> bool:
        return (self.last("accuracy") or 0.0) >= SOLVED


def alarms(run: Run) -> list[dict[str, Any]]:
    ends = Ends(run)
    if ends.steps < FEWEST_STEPS or run.kind != "grpo":
        return []
    return [asdict(alarm) for rule in RULES for alarm in rule(ends)]


def _not_finite(ends: Ends) -> Iterator[Alarm]:
    steps = ends.run.select("SELECT step FROM metrics WHERE name = 'skipped_updates' AND value > 0 ORDER BY step")
    if steps:
        yield Alarm(
            "Gradients that were not finite",
            f"{len(steps)} of {ends.steps} steps skipped an update; the first is step {steps[0]['step']}.",
            "The learning rate is too high, or the model's numbers overflow.",
            "groups",
            f"groups of step {steps[0]['step']}",
            {"step": steps[0]["step"]},
        )


def _proxy(ends: Ends) -> Iterator[Alarm]:
    evals = [row for row in ends.run.evals() if row["accuracy"] is not None]
    first, last = ends.first("reward_mean"), ends.last("reward_mean")
    if len(evals) < 2 or first is None or last is None:
        return
    best = max(evals, key=lambda row: row["accuracy"])
    if last > first + 0.05 and evals[-1]["high"] < best["low"]:
        yield Alarm(
            "Reward rose while held-out accuracy fell",
            f"Mean reward went from {first:.2f} to {last:.2f}; held-out accuracy from {best['accuracy']:.0%} (after "
            f"{best['step']} steps) to {evals[-1]['accuracy']:.0%}, beyond both intervals.",
            "The policy may have found what pays without being right: read what earns the reward now.",
            "completions",
            "the newest completions that earned the full reward",
            {"filters": "right"},
        )


def _saturated_part(ends: Ends) -> Iterator[Alarm]:
    parts: dict[str, list[float]] = {}
    for step in range(ends.steps - ends.width, ends.steps)[-20:]:
        for group in ends.run.completions(step):
            for done in group["completions"]:
                for part, value in done["parts"].items():
                    if value is not None:
                        parts.setdefault(part, []).append(value)
    for part, values in parts.items():
        if len(parts) > 1 and len(values) >= 40 and max(values) > 0 and fmean(values) > 0.99 * max(values):
            yield Alarm(
                f"Everyone earns {part}",
                f"The part {part} was earned by {fmean(v == max(values) for v in values):.0%} of the last completions.",
                "It no longer tells completions apart; what is left to learn is in the other parts.",
                "groups",
                f"groups of step {ends.last_step}",
                {"step": ends.last_step},
            )


def _duplicates(ends: Ends) -> Iterator[Alarm]:
    level, same, example = 0, 0, None
    for step in range(ends.steps - ends.width, ends.steps)[-20:]:
        for group in ends.run.completions(step):
            completions = group["completions"]
            if len(completions) > 1 and not any(is_right(done["reward"]) for done in completions):
                level += 1
                if len({done["text"] for done in completions}) == 1:
                    same += 1
                    example = example or (step, group["group_index"])
    if example and level >= 10 and same > level / 2:
        yield Alarm(
            "Wrong answers that are all the same",
            f"In {same} of the last {level} groups without a right answer, all completions are one and the same text.",
            "Nothing is explored where something is left to learn: raise the temperature, or lower the learning rate.",
            "groups",
            f"such a group, in step {example[0]}",
            {"step": example[0], "group": example[1]},
        )


def _length(ends: Ends) -> Iterator[Alarm]:
    first, last = ends.first("length_mean"), ends.last("length_mean")
    rewards = ends.first("reward_mean"), ends.last("reward_mean")
    if not first or not last or rewards[0] is None or rewards[1] is None or rewards[1] > rewards[0] + 0.05:
        return
    if last > 3 * first or last < first / 3:
        yield Alarm(
            "Completions grew without reward" if last > first else "Completions shrank without reward",
            f"Length went from {first:.0f} to {last:.0f} tokens, reward from {rewards[0]:.2f} to {rewards[1]:.2f}.",
            "Padding, repetition or giving up: read the newest ones.",
            "completions",
            "the newest completions",
        )


def _truncated(ends: Ends) -> Iterator[Alarm]:
    share = ends.last("truncated")
    if share is not None and share > 0.25:
        yield Alarm(
            "Many completions are cut off",
            f"{share:.0%} of the last completions ran into the length limit.",
            "Their answers are lost, and with them their reward: raise max_new_tokens, or expect it.",
            "completions",
            "completions that were cut off",
            {"filters": "cut"},
        )


def _entropy(ends: Ends) -> Iterator[Alarm]:
    first, last = ends.first("entropy"), ends.last("entropy")
    if first and last is not None and last < 0.01 and last < first / 10 and not ends.solved:
        yield Alarm(
            "Entropy has fallen to the floor",
            f"From {first:.3f} to {last:.4f} nats per token, accuracy is at {ends.last('accuracy') or 0:.0%}.",
            "The policy no longer tries anything else: lower the learning rate, or raise the temperature.",
            "tokens",
            "tokens by entropy",
            {"lens": "entropy", "step": ends.last_step},
        )


def _drift(ends: Ends) -> Iterator[Alarm]:
    kl = ends.last("kl")
    if kl is not None and kl > 0.5:
        yield Alarm(
            "The policy is far from its reference",
            f"The last steps have a KL of {kl:.2f} nats per token.",
            "It may have left the language it began with: raise beta, or lower the learning rate.",
            "tokens",
            "tokens by KL",
            {"lens": "kl", "step": ends.last_step},
        )
    wild = ends.run.select("SELECT step FROM metrics WHERE name = 'ratio_max' AND value > 10 ORDER BY step")
    if len(wild) > max(2, ends.steps // 50):
        yield Alarm(
            "Ratios far from 1",
            f"In {len(wild)} of {ends.steps} steps some token became more than ten times as likely within the batch.",
            "Clipping bounds a gradient, not a ratio: take fewer epochs or minibatches, or a lower learning rate.",
            "tokens",
            "tokens by ratio",
            {"lens": "ratio", "step": wild[-1]["step"]},
        )


def _gap(ends: Ends) -> Iterator[Alarm]:
    gap = ends.last("sampler_gap")
    if gap is not None and gap > 0.05:
        yield Alarm(
            "Sampler and trainer disagree",
            f"Their log-probabilities differ by {gap:.3f} nats per token.",
            "The ratio then compares two models: look for a difference in temperature, precision or weights.",
            "tokens",
            "tokens by sampler gap",
            {"lens": "gap", "step": ends.last_step},
        )


def _no_signal(ends: Ends) -> Iterator[Alarm]:
    share = ends.last("zero_signal_groups")
    if share is not None and share > 0.9 and not ends.solved:
        yield Alarm(
            "Hardly a group has anything to teach",
            f"{share:.0%} of the last groups have equal rewards, with accuracy at {ends.last('accuracy') or 0:.0%}.",
            "The problems are out of reach, or the reward does not tell them apart: make them easier, or sample more.",
            "signal",
            "the signal budget",
        )


RULES: tuple[Callable[[Ends], Iterator[Alarm]], ...] = (
    _not_finite,
    _proxy,
    _saturated_part,
    _duplicates,
    _length,
    _truncated,
    _entropy,
    _drift,
    _gap,
    _no_signal,
)
