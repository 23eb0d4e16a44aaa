"""How far a run is, its newest numbers with their trends, its first and its newest evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grpo.tasks.traits import label_of, trait_metrics

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run


@dataclass(frozen=True)
class Number:
    """A number that is followed through the run: the sum of its metrics."""

    label: str
    metrics: tuple[str, ...]
    form: str
    top: float = 0.0
    """What a full block of the trend means at least: 1 for shares, so that their height can be read."""

    def text(self, value: float) -> str:
        return self.form.format(value) if math.isfinite(value) else "–"


GRAD_NORM = Number("grad norm", ("grad_norm",), "{:.2f}")
TOKENS_PER_SECOND = Number("tokens/s", ("tokens_per_second",), "{:,.0f}")
GRPO_NUMBERS = (
    Number("reward", ("reward_mean",), "{:.2f}"),
    Number("accuracy", ("accuracy",), "{:.0%}", top=1.0),
    Number("length", ("length_mean",), "{:.1f}"),
    Number("zero signal", ("zero_signal_groups",), "{:.0%}", top=1.0),
    Number("entropy", ("entropy",), "{:.3f}"),
    Number("KL", ("kl",), "{:.4f}"),
    Number("clipped", ("clip_low", "clip_high"), "{:.1%}"),
    GRAD_NORM,
    TOKENS_PER_SECOND,
)
SFT_NUMBERS = (Number("loss", ("sft_loss",), "{:.3f}"), TOKENS_PER_SECOND, Number("lr", ("lr",), "{:.1e}"), GRAD_NORM)


class Trend:
    """Means over equal stretches of the run, at most 128 of them: a run of any length costs the same."""

    def __init__(self) -> None:
        self.latest = math.nan
        self.means: list[float] = []
        self.unfinished: list[float] = []
        self.stretch = 1

    def add(self, value: float) -> None:
        self.latest = value
        if not math.isfinite(value):
            return
        self.unfinished.append(value)
        if len(self.unfinished) == self.stretch:
            self.means.append(sum(self.unfinished) / self.stretch)
            self.unfinished.clear()
        if len(self.means) == 128:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.stretch *= 2

    def blocks(self, width: int, top: float) -> str:
        """Drawn from 0 upward, so that what hardly changes looks flat."""
        count = min(width, len(self.means))
        bounds = [len(self.means) * i // count for i in range(count + 1)] if count else []
        parts = [self.means[start:end] for start, end in pairwise(bounds)]
        means = [sum(part) / len(part) for part in parts]
        low, high = min([0.0, *means]), max([top, *means])
        return "".join("▁▂▃▄▅▆▇█"[round(7 * (mean - low) / (high - low or 1.0))] for mean in means)


class Progress:
    """What both views show of a run that goes on."""

    def __init__(self, run: Run, config: Config | SftConfig, first_step: int):
        self.steps = config.steps or run.config["steps"]  # fine-tuning by epochs is 0 steps until it is resolved
        self.first_step = self.done = first_step
        self.started_at = self.stepped_at = time.monotonic()
        self.evals: list[dict[str, Any]] = run.evals()
        self.trends = {number: Trend() for number in (SFT_NUMBERS if run.kind == "sft" else GRPO_NUMBERS)}
        self.traits: dict[Number, Trend] = {}
        for metrics in run.metrics():  # of a resumed run
            self._follow(metrics)

    def evaluated(self, step: int, row: Mapping[str, float]) -> None:
        earlier = [known for known in self.evals if known["step"] < step]
        self.evals = [*earlier[:1], {**row, "step": step}]

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        if "sft_loss" in metrics:
            metrics = {**metrics, "tokens_per_second": metrics["tokens"] / max(now - self.stepped_at, 1e-9)}
        self.done, self.stepped_at = step + 1, now
        self._follow(metrics)

    def _follow(self, metrics: Mapping[str, Any]) -> None:
        for metric in trait_metrics(metrics):
            self.traits.setdefault(Number(label_of(metric), (metric,), "{:.0%}", top=1.0), Trend())
        for number, trend in (*self.trends.items(), *self.traits.items()):
            values = [metrics[name] for name in number.metrics if metrics.get(name) is not None]
            if len(values) == len(number.metrics):  # an update that was skipped has no gradient, clipping or entropy
                trend.add(sum(values))

    def numbers(self) -> list[tuple[Number, Trend]]:
        """The numbers that the run has: reward and accuracy, the task's traits, the others."""
        numbers = list(self.trends.items())
        numbers[2:2] = self.traits.items()
        return [(number, trend) for number, trend in numbers if trend.means or trend.unfinished]

    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    def seconds_left(self) -> float:
        return self.seconds() / (self.done - self.first_step) * (self.steps - self.done)
