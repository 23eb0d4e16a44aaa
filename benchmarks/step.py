"""Milliseconds of a whole GRPO step by phase.

python benchmarks/step.py --model nano --prompts 16 --group 8 --new 32 [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile

import torch

import grpo
from grpo.config import Config, Evaluation, System
from grpo.store import Run


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Median over the steps after the first few, which warm caches up."""
    with tempfile.TemporaryDirectory() as runs:
        config = Config(
            model=arguments.model,
            steps=arguments.steps,
            prompts_per_step=arguments.prompts,
            group_size=arguments.group,
            max_new_tokens=arguments.new,
            checkpoint_every=0,
            evaluation=Evaluation(every=0, problems=16, probes=0),
            system=System(runs=runs, threads=arguments.threads),
        )
        with grpo.train(config) as run:
            phases = phase_seconds(run)
            lengths = [value for _, value in run.metrics("length_mean")][5:]
            versions = run.summary()["versions"]
    medians = {phase: round(1000 * statistics.median(values[5:]), 2) for phase, values in phases.items()}
    steps = [sum(step) for step in zip(*phases.values(), strict=True)]
    return {
        "model": arguments.model,
        "work": f"{arguments.prompts}x{arguments.group}, at most {arguments.new} new tokens",
        "step_ms": round(1000 * statistics.median(steps[5:]), 2),
        "phases_ms": medians,
        "mean_length": round(statistics.fmean(lengths), 2),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": versions,
    }


def phase_seconds(run: Run) -> dict[str, list[float]]:
    phases: dict[str, list[float]] = {}
    for span in run.spans():
        phases.setdefault(span["name"], []).append(span["seconds"])
    return phases


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    result = measure(parser.parse_args())
    if parser.parse_args().json:
        print(json.dumps(result))
    else:
        print(
            f"{result['model']}, {result['work']}: {result['step_ms']} ms a step, mean length {result['mean_length']}"
        )
        for phase, milliseconds in result["phases_ms"].items():
            print(f"  {phase:8} {milliseconds:8.2f} ms")
