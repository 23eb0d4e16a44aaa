"""The share of training time that checkpoints and the record take.

python benchmarks/overhead.py [--model tiny] [--steps 60] [--every 10] [--json]

Runs with a checkpoint every N steps and runs without alternate, and the median step times are compared. Where step
times vary, noise hides that difference. So the time a checkpoint blocks the loop is measured as well, without the first
checkpoint, which allocates memory for the copies.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

import grpo
from grpo.config import Config, Evaluation, System
from grpo.record.events import Callback
from grpo.training import loop
from grpo.training.session import Session
from grpo.types import Group


class Timer(Callback):
    """Records when each step ends, so that checkpoints between steps count."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        self.ends.append(time.perf_counter())


class TimedSession(Session):
    """Records how long each checkpoint blocks the loop."""

    stalls: ClassVar[list[float]] = []

    def checkpoint(self, step: int, *, last: bool = False) -> None:
        start = time.perf_counter()
        super().checkpoint(step, last=last)
        self.stalls.append(time.perf_counter() - start)


def run_once(arguments: argparse.Namespace, every: int) -> tuple[float, float]:
    """Mean seconds of a step after the first five, checkpoints included, and mean seconds of its `record` span."""
    with tempfile.TemporaryDirectory() as runs:
        config = Config(
            model=arguments.model,
            task=arguments.task,
            steps=arguments.steps,
            checkpoint_every=every,
            evaluation=Evaluation(every=0, problems=16, probes=0),
            system=System(runs=runs, device=arguments.device),
        )
        timer = Timer()
        with grpo.train(config, callbacks=[timer]) as run:
            recording = [span["seconds"] for span in run.spans() if span["name"] == "record"]
    seconds = (timer.ends[-1] - timer.ends[4]) / (len(timer.ends) - 5)
    return seconds, statistics.fmean(recording[5:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="name, folder or Hugging Face id, as in grpo train")
    parser.add_argument("--task", default="arithmetic", help="as in grpo train")
    parser.add_argument("--steps", type=int, default=60, help="steps of each run")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    parser.add_argument("--device", default="auto", help="as system.device")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    loop.Session = TimedSession
    rounds = [(run_once(arguments, arguments.every), run_once(arguments, 0)) for _ in range(arguments.rounds)]
    with_checkpoints = statistics.median(seconds for (seconds, _), _ in rounds)
    without = statistics.median(seconds for _, (seconds, _) in rounds)
    recording = statistics.median(record for _, (_, record) in rounds)
    result = {
        "model": arguments.model,
        "step_seconds": round(without, 4),
        "step_seconds_with_checkpoints": round(with_checkpoints, 4),
        "checkpoint_share": round(with_checkpoints / without - 1, 4),
        "checkpoint_stall_seconds": round(statistics.median(TimedSession.stalls[1:]), 4),
        "checkpoint_stall_share": round(statistics.median(TimedSession.stalls[1:]) / (without * arguments.every), 4),
        "record_share": round(recording / without, 4),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32} {value}")
