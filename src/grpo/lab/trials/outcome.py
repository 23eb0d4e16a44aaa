"""The outcome of a trial: each seed's curves, their band, and the held-out accuracy before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from grpo.lab.trials.spec import Trial

AXES = ("step", "tokens", "seconds")


class Outcome:
    """The outcome of a trial so far, built from the messages of `perform`, live or from a file."""

    def __init__(self, trial: Trial):
        self.trial = trial
        self.runs: dict[tuple[int, int], dict[str, Any]] = {}

    def add(self, message: Mapping[str, Any]) -> None:
        run = self.runs.setdefault((message["arm"], message["seed"]), {"rows": [], "warnings": [], "ended": None})
        if message["kind"] == "step":
            run["rows"].append({key: message[key] for key in ("step", "tokens", "seconds", "values")})
            if message["openings"]:
                run["rows"][-1]["openings"] = message["openings"]
        elif message["kind"] == "warned":
            run["warnings"].append(message["text"])
        else:
            run["ended"] = {key: message[key] for key in ("evals", "findings", "probes")}

    @property
    def steps_done(self) -> int:
        return sum(len(run["rows"]) for run in self.runs.values())

    @property
    def steps_total(self) -> int:
        return self.trial.steps * self.trial.seeds * len(self.trial.arms)

    def as_json(self) -> list[dict[str, Any]]:
        return [{"arm": arm, "seed": seed, **run} for (arm, seed), run in self.runs.items()]

    @classmethod
    def from_json(cls, trial: Trial, rows: Sequence[Mapping[str, Any]]) -> Outcome:
        outcome = cls(trial)
        for row in rows:
            kept = {key: row[key] for key in ("rows", "warnings", "ended")}
            outcome.runs[row["arm"], row["seed"]] = kept
        return outcome

    def summary(self) -> dict[str, Any]:
        """By arm: every seed's curves, their band, and the held-out accuracy before and after."""
        return {
            "trial": self.trial.as_json(),
            "progress": {"done": self.steps_done, "total": self.steps_total},
            "arms": [self._arm(arm, label) for arm, (label, _) in enumerate(self.trial.arms)],
        }

    def _arm(self, arm: int, label: str) -> dict[str, Any]:
        runs = {seed: run for (of, seed), run in sorted(self.runs.items()) if of == arm}
        ended = [run for run in runs.values() if run["ended"]]
        curves = {
            name: [_columns(seed, run["rows"], name) for seed, run in runs.items()] for name in self.trial.metrics
        }
        bands = {name: band([_columns(0, run["rows"], name) for run in ended]) for name in self.trial.metrics}
        return {
            "label": label,
            "settings": dict(self.trial.arms[arm][1]),
            "curves": curves,
            "bands": bands,
            "openings": [{"seed": seed, "rows": openings_of(run["rows"])} for seed, run in runs.items()],
            "evals": [{"seed": seed, "rows": run["ended"]["evals"]} for seed, run in runs.items() if run["ended"]],
            "accuracy": accuracy_of([run["ended"]["evals"] for run in ended]),
            "findings": {seed: run["ended"]["findings"] for seed, run in runs.items() if run["ended"]},
            "probes": ended[0]["ended"]["probes"] if ended else [],
            "warnings": [text for run in runs.values() for text in run["warnings"]],
        }


def openings_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How often each first turn was taken in a step's episodes; empty where completions have one turn."""
    return [{"step": row["step"], "counts": row["openings"]} for row in rows if "openings" in row]


def _columns(seed: int, rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    measured = [row for row in rows if row["values"].get(name) is not None]
    axes = {axis: [row[axis] for row in measured] for axis in AXES}
    return {"seed": seed, **axes, "value": [row["values"][name] for row in measured]}


def band(curves: Sequence[Mapping[str, Sequence[float]]]) -> list[dict[str, float]]:
    """Mean over seeds and one sample standard deviation to either side, as far as all of them go.

    >>> [low, high] = ({"step": [1], "tokens": [9.0], "seconds": [0.1], "value": [value]} for value in (0.0, 2.0))
    >>> band([low, high])
    [{'step': 1.0, 'tokens': 9.0, 'seconds': 0.1, 'mean': 1.0, 'low': -0.41421356237309515, 'high': 2.414213562373095}]
    """
    points = []
    for place in range(min((len(curve["value"]) for curve in curves), default=0)):
        values = [curve["value"][place] for curve in curves]
        middle, spread = fmean(values), stdev(values) if len(values) > 1 else 0.0
        at = {axis: fmean(curve[axis][place] for curve in curves) for axis in AXES}
        points.append({**at, "mean": middle, "low": middle - spread, "high": middle + spread})
    return points


def accuracy_of(evals: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Any] | None:
    """Held-out accuracy before and after, mean and sample standard deviation over the seeds that ended."""
    if not evals or any(row.get("accuracy") is None for rows in evals for row in rows):
        return None  # the task has no notion of correct, and another reward trained it
    ends = {"before": [rows[0]["accuracy"] for rows in evals], "after": [rows[-1]["accuracy"] for rows in evals]}
    return {
        when: {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None, "seeds": values}
        for when, values in ends.items()
    }
