"""The part of a run's record that the checks read: its first steps, its last ones, and the best reward in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grpo.record.ranks import Ranks

if TYPE_CHECKING:
    from grpo.record.store import Run

WINDOW = 10
"""Steps a check averages: the last ones and, for comparison, the first ones."""
LONG_WINDOW = 20
"""Steps that `reward_flat` compares."""
PAST = 100
"""Steps before the window from which the usual gradient norm is taken."""
SAMPLED_STEPS = 3
"""Last steps whose completions are read; also the shortest window in which a fall of the reward is seen."""
SOLVED = 0.9
"""Accuracy above which low entropy and a flat reward are normal."""


CAUSES = {
    "unscored": "the completions without a reward",
    "trained_observations": "the observed tokens that are trained",
    "sampler_gap": "the gap between sampler and trainer",
    "reward_hacking": "the gamed reward",
    "diverged": "the first updates, which were too large",
    "reward_fall": "the fall of the reward",
    "spike": "the spike in the gradient norm",
    "ratios": "the extreme policy ratios",
    "clipped": "the clipped tokens",
    "kl": "the distance from the reference",
    "entropy_collapse": "the fall of the entropy",
    "length_growth": "the growing length",
    "length_collapse": "the shrinking length",
    "truncated": "the truncated completions",
    "all_wrong": "groups whose answers are all wrong",
    "all_right": "groups whose answers are all right",
    "no_signal": "groups without signal",
    "duplicates": "the equal completions",
    "saturated_part": "the reward part that no longer varies",
}
"""How a consequence names its cause, by kind of finding."""


@dataclass(frozen=True)
class Finding:
    kind: str
    step: int
    """The last step the check read."""
    value: float
    """The number that is compared with the threshold."""
    observation: str
    advice: str
    at: int
    """The step that shows it best."""
    group: int | None = None
    """A group of that step that is an example."""
    cause: str = ""
    """The kind of the finding that probably caused this one; empty: it is a probable cause itself."""

    @property
    def text(self) -> str:
        """The observation with its advice. The consequence of another finding has no advice of its own."""
        end = f"; probably a consequence of {CAUSES[self.cause]}" if self.cause else f": {self.advice}"
        return f"after {self.at + 1} step{'s' if self.at else ''}, {self.observation}{end}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text}

    def is_new_after(self, earlier: Finding | None) -> bool:
        """Whether the number has changed by more than half since it was last reported, or its cause is another."""
        if earlier is None or earlier.cause != self.cause:
            return True
        return abs(self.value - earlier.value) > 0.5 * abs(earlier.value)


class Best:
    """The highest mean reward over a number of steps in a row."""

    def __init__(self, steps: int):
        self.steps = steps
        self.mean: float | None = None
        self.after = 0
        """Number of steps the run had taken at the end of them."""

    def add(self, rewards: Sequence[float | None]) -> None:
        """Updates the best mean with the newest window."""
        window = [reward for reward in rewards[-self.steps :] if reward is not None]
        if len(window) == self.steps and (self.mean is None or fmean(window) > self.mean):
            self.mean, self.after = fmean(window), len(rewards)


class History:
    """Rows of metrics, in the order of their steps, from which the first and the last are kept; evaluations, and the
    groups of the last steps (as `Run.groups` has them)."""

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]] = (),
        evals: Sequence[Mapping[str, Any]] = (),
        groups: Sequence[Mapping[str, Any]] = (),
        config: Mapping[str, Any] | None = None,
    ):
        self.evals, self.groups, self.config = evals, groups, config or {}
        self.first_rows: list[Mapping[str, Any]] = []
        self.last_rows: list[Mapping[str, Any]] = []
        self.rewards: list[float | None] = []
        """Mean reward of every step."""
        self.accuracies: list[float | None] = []
        """Share of right completions of every step."""
        self.best, self.best_short = Best(WINDOW), Best(SAMPLED_STEPS)
        self.ranks = Ranks()
        for row in rows:
            self.add(row)

    @classmethod
    def of(cls, run: Run, up_to: int | None = None) -> History:
        """The record as it was after step `up_to`; None: all of it."""
        history = cls(config=run.config)
        history.extend(run, up_to)
        return history

    def extend(self, run: Run, up_to: int | None = None) -> None:
        """Adds the steps recorded since, up to step `up_to`."""
        known = len(self.rewards)
        query = "SELECT step, sum(seconds) AS seconds FROM spans WHERE step >= ? GROUP BY step"
        seconds = {row["step"]: row["seconds"] for row in run.select(query, known)}
        for row in run.metrics(since=known):
            if up_to is None or row["step"] <= up_to:
                self.add({**row, "seconds": seconds.get(row["step"])})
        self.ranks = Ranks.of(run)
        self.evals = [row for row in run.evals() if row["step"] <= len(self.rewards)]
        self.groups = [group for row in self.last_rows[-SAMPLED_STEPS:] for group in run.groups(row["step"])]

    def add(self, row: Mapping[str, Any]) -> None:
        if len(self.first_rows) < LONG_WINDOW:
            self.first_rows.append(row)
        self.last_rows = [*self.last_rows[-(PAST + WINDOW - 1) :], row]
        self.rewards.append(row.get("reward_mean"))
        self.accuracies.append(row.get("accuracy"))
        self.best.add(self.rewards)
        self.best_short.add(self.rewards)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    @property
    def step(self) -> int:
        return int(self.last_rows[-1]["step"])

    def last(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.last_rows[-count:] if row.get(metric) is not None]

    def first(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.first_rows[:count] if row.get(metric) is not None]

    def setting(self, path: str, default: Any) -> Any:
        section, _, name = path.rpartition(".")
        return (self.config.get(section, {}) if section else self.config).get(name, default)

    @property
    def is_solved(self) -> bool:
        return bool(accuracy := self.last("accuracy")) and fmean(accuracy) >= SOLVED

    def found(
        self,
        kind: str,
        value: float,
        observation: str,
        advice: str,
        *,
        at: int | None = None,
        example: Mapping[str, Any] | None = None,
    ) -> Finding:
        """`at` is the step it happened in, if that is not the last one; `example` is a group that shows it."""
        at, group = (self.step if at is None else at, None) if example is None else self._place(example)
        return Finding(kind, self.step, value, observation, advice, at, group)

    @staticmethod
    def _place(group: Mapping[str, Any]) -> tuple[int, int]:
        return group["step"], group["group_index"]


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
