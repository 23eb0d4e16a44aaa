"""Trains a trial with the trainer and reports its progress; `grpo.lab.trials.worker` is the process that does so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from grpo.lab.trials.spec import Trial
from grpo.record.events import Terminal

MOST_OPENINGS = 20
"""Most different first turns of a step's episodes that are counted."""


def perform(trial: Trial, folder: Path, report: Callable[[dict[str, Any]], None]) -> None:
    """Trains every arm with every seed; all arms of a seed come first, so that an early end leaves arms to compare."""
    import grpo
    from grpo.record.diagnosis import diagnose

    for seed in range(1, trial.seeds + 1):
        for arm in range(len(trial.arms)):
            place = {"arm": arm, "seed": seed}
            reporter = _Reporter(place, trial.metrics, report)
            with grpo.train(trial.config(arm, seed=seed, folder=folder), callbacks=[reporter]) as run:
                found = [finding.as_dict() for finding in diagnose(run)]
                evals = run.evals()
                probes = [
                    {"step": row["step"], "prompt": row["prompt"], "answer": row["answer"], "samples": row["samples"]}
                    for row in run.probes()
                ]
            report({"kind": "ended", **place, "evals": evals, "findings": found, "probes": probes})


class _Reporter(Terminal):
    """Reports each step's numbers, and how many tokens and seconds of training they took so far."""

    def __init__(self, place: dict[str, int], metrics: Sequence[str], report: Callable[[dict[str, Any]], None]):
        self.place, self.metrics, self.report = place, metrics, report
        self.tokens = self.seconds = 0.0

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.since = time.perf_counter()  # evaluation time is excluded

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Any]) -> None:
        self.tokens += metrics["tokens"]
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now
        values = {name: _short(metrics[name]) for name in self.metrics if isfinite(metrics.get(name, nan))}
        row = {"step": step + 1, "tokens": self.tokens, "seconds": round(self.seconds, 3), "values": values}
        openings = Counter(done.turns[0] for group in groups for done in group.completions if done.turns)
        self.report({"kind": "step", **self.place, **row, "openings": dict(openings.most_common(MOST_OPENINGS))})

    def on_warning(self, text: str) -> None:
        self.report({"kind": "warned", **self.place, "text": text})


def _short(value: float) -> float:
    return float(f"{value:.5g}")
