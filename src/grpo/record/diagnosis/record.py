"""What a diagnosis looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.record.store import Run

WINDOW = 10
"""Steps that a finding looks at: the last so many, and for comparison the first."""
EVERY = 10
"""Steps between two looks of a running trainer."""
SAMPLED_STEPS = 3
"""Of the window, the last so many are read completion by completion."""
SOLVED = 0.9
"""Accuracy above which little entropy and a flat reward are no fault."""


@dataclass(frozen=True)
class Finding:
    kind: str
    step: int
    """The last step it looked at."""
    value: float
    """The number that the threshold is for."""
    text: str
    at: int
    """The step that shows it best."""
    group: int | None = None
    """A group of that step that is an example of it."""

    def is_news_after(self, earlier: Finding | None) -> bool:
        """Whether it has changed by more than half since it was last told."""
        return earlier is None or abs(self.value - earlier.value) > 0.5 * abs(earlier.value)


@dataclass(frozen=True)
class Record:
    """What is looked at: rows of metrics by step, evaluations, and the last groups; in order."""

    steps: Sequence[Mapping[str, Any]]
    evals: Sequence[Mapping[str, Any]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    """As `Run.completions` gives them."""
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, up_to: int | None = None) -> Record:
        """The record as it was after step `up_to`; all of it where none is named."""
        rows = [row for row in run.metrics() if up_to is None or row["step"] <= up_to]
        last = rows[-1]["step"] if rows else -1
        groups = [group for row in rows[-SAMPLED_STEPS:] for group in run.groups(row["step"])]
        return cls(rows, [row for row in run.evals() if row["step"] <= last + 1], groups, run.config)

    @property
    def step(self) -> int:
        return self.steps[-1]["step"]

    def last(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.steps[-count:] if row.get(metric) is not None]

    def first(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.steps[:count] if row.get(metric) is not None]

    def setting(self, path: str, default: Any) -> Any:
        section, _, name = path.rpartition(".")
        return (self.config.get(section, {}) if section else self.config).get(name, default)

    @property
    def is_solved(self) -> bool:
        return bool(accuracy := self.last("accuracy")) and fmean(accuracy) >= SOLVED

    def found(
        self, kind: str, value: float, text: str, at: int | None = None, example: Mapping[str, Any] | None = None
    ) -> Finding:
        """`at` is the step it happened in, where that is not the last; `example` is a group that shows it."""
        at = self.step if at is None else at
        place = (at, None) if example is None else (example["step"], example["group_index"])
        return Finding(kind, self.step, value, f"after {at + 1} steps, {text}", *place)


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
