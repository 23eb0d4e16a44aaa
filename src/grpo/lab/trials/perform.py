"""Trains a trial with the real trainer, and tells what happens.

As a program it reads the trial as JSON from its input, trains in the folder it is given, and writes a line of JSON for
every step; `grpo.lab.trials.desk` runs it so, in a process of its own that can be ended at any time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.trials.spec import Trial
from grpo.record.events import Terminal


def perform(trial: Trial, folder: Path, tell: Callable[[dict[str, Any]], None]) -> None:
    """Trains every arm with every seed; seeds go round before arms do, so that an early end leaves arms to compare."""
    import grpo
    from grpo.record.diagnosis import diagnose

    for seed in range(1, trial.seeds + 1):
        for arm in range(len(trial.arms)):
            place = {"arm": arm, "seed": seed}
            teller = _Teller(place, trial.metrics, tell)
            with grpo.train(trial.config(arm, seed=seed, folder=folder), callbacks=[teller]) as run:
                found = [finding.as_dict() for finding in diagnose(run)]
                evals = run.evals()
                probes = [
                    {"step": row["step"], "prompt": row["prompt"], "answer": row["answer"], "samples": row["samples"]}
                    for row in run.probes()
                ]
            tell({"kind": "ended", **place, "evals": evals, "findings": found, "probes": probes})


class _Teller(Terminal):
    """Tells each step's numbers, and how many tokens and seconds of training they took so far."""

    def __init__(self, place: dict[str, int], metrics: Sequence[str], tell: Callable[[dict[str, Any]], None]):
        self.place, self.metrics, self.tell = place, metrics, tell
        self.tokens = self.seconds = 0.0

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.since = time.perf_counter()  # evaluations do not count

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Any]) -> None:
        self.tokens += metrics["tokens"]
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now
        values = {name: _short(metrics[name]) for name in self.metrics if isfinite(metrics.get(name, nan))}
        row = {"step": step + 1, "tokens": self.tokens, "seconds": round(self.seconds, 3), "values": values}
        self.tell({"kind": "step", **self.place, **row})

    def on_warning(self, text: str) -> None:
        self.tell({"kind": "warned", **self.place, "text": text})


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    # What was told must get through whole, and nothing else may be in between.
    out = sys.stdout
    sys.stdout = sys.stderr

    def tell(row: dict[str, Any]) -> None:
        try:
            print(json.dumps(row), file=out, flush=True)
        except BrokenPipeError:  # border: nobody reads any more
            raise SystemExit from None

    try:
        perform(Trial.of(asked["trial"], asked["rewards"]), Path(asked["folder"]), tell)
    except GrpoError as problem:
        tell({"kind": "failed", "error": str(problem)})


if __name__ == "__main__":
    main()
