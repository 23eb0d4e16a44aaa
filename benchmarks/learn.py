"""Reward over time of training: grpo and other trainers on the same problems, rewards, batch, learning rate and seeds.

python benchmarks/learn.py --peer trl --seeds 3 --steps 60 --picture docs/images/against-trl.png
python benchmarks/learn.py --model nano --prompts 4 --group 4 --steps 6 --seeds 2 --peer trl

Every trainer and seed runs in its own process and writes its steps to a file in --out. Existing files are reused, so
that --minutes can split the work: repeat the command until nothing is left to run. Time counts from the first step,
without loading and without evaluations. The reward is a moving average over 5 steps. --reach is the reward whose time
is measured. The plot needs matplotlib; if it is missing, copy the folder of --out to another machine and repeat the
command there with the same --device.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arms import Work, add_options, parse_work, read_steps, run_in_process
from flags import Parser

SMOOTHED = 5
"""Steps in the moving average of the reward."""
NAMES = {"grpo": "grpo", "trl": "TRL", "trl-vllm": "TRL + vLLM"}
COLOURS = {"grpo": "#2a78b5", "trl": "#c1651b", "trl-vllm": "#5b8c3e"}

Curve = Mapping[str, Sequence[float]]
"""Smoothed reward, seconds and completions (samples), one value of each per step."""


def main() -> None:
    parser = Parser(__doc__)
    add_options(parser, model="smollm2", prompts=64, group=16, new=32, steps=60)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on")
    parser.add_argument("--reach", type=float, default=0.8, help="reward whose time is measured")
    parser.add_argument("--out", type=Path, default=Path("learn"), help="folder of the recorded steps, reused later")
    parser.add_argument("--picture", type=Path, default=None, help="file of the plot; default: learn.png in --out")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no process that would end later; 0: no limit")
    arguments = parser.parse_args()
    arms, work = parse_work(arguments)
    remaining = run_all(arms, work, arguments.seeds, arguments.out, arguments.minutes)
    report = {"work": vars(work), "reach": arguments.reach, "remaining": remaining}
    curves = {arm: found for arm in arms if (found := load_curves(arm, work, arguments.seeds, arguments.out))}
    report |= compare(curves, arguments.reach)
    if curves:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "learn.json").write_text(json.dumps(report | {"curves": curves}))
        draw(curves, arguments.reach, work, arguments.picture or arguments.out / "learn.png")
    print(json.dumps(report) if arguments.json else table(report))


def run_all(arms: Sequence[str], work: Work, seeds: int, out: Path, minutes: float) -> list[str]:
    """Runs every arm and seed that has no file; returns those that --minutes leaves out. Seeds are the outer loop, so
    that an unfinished comparison has complete seeds."""
    begun, remaining = time.monotonic(), []
    longest = dict.fromkeys(arms, 0.0)
    for seed in range(1, seeds + 1):
        for arm in arms:
            file = steps_file(arm, work, seed, out)
            expected_end = time.monotonic() - begun + longest[arm]
            if not file.exists() and (remaining or 0 < 60 * minutes < expected_end):
                remaining.append(f"{arm} seed {seed}")
                continue
            if not file.exists():
                print(f"{arm}, seed {seed} of {seeds}", file=sys.stderr)
                run_in_process(arm, replace(work, seed=seed), file)
            steps = read_steps(file)
            longest[arm] = max(longest[arm], steps[0]["start_seconds"] + sum(step["seconds"] for step in steps))
    return remaining


def steps_file(arm: str, work: Work, seed: int, out: Path) -> Path:
    """The name has a hash of the work."""
    key = hashlib.sha256(json.dumps(asdict(replace(work, seed=seed))).encode()).hexdigest()[:8]
    return out / f"{arm}-{seed}-{key}.jsonl"


def load_curves(arm: str, work: Work, seeds: int, out: Path) -> dict[str, Any]:
    """The curves of an arm by seed."""
    files = {seed: steps_file(arm, work, seed, out) for seed in range(1, seeds + 1)}
    per_step = work.prompts * work.group
    return {str(seed): curve(read_steps(file), per_step) for seed, file in files.items() if file.exists()}


def curve(steps: Sequence[Mapping[str, Any]], per_step: int) -> dict[str, list[float]]:
    """The curve of recorded steps with `per_step` completions each.

    >>> found = curve([{"reward": float(i), "seconds": 2.0} for i in range(7)], per_step=8)
    >>> found["reward"], found["seconds"][-1], found["samples"][0]
    ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], 14.0, 8)
    """
    rewards = [step["reward"] for step in steps]
    spent = 0.0
    seconds = [spent := spent + step["seconds"] for step in steps]
    smooth = [statistics.fmean(rewards[max(0, i + 1 - SMOOTHED) : i + 1]) for i in range(len(rewards))]
    return {"reward": smooth, "seconds": seconds, "samples": [per_step * (i + 1) for i in range(len(rewards))]}


def first_reaching(one: Curve, reach: float) -> dict[str, float] | None:
    """Step, seconds and samples at which the smoothed reward first reaches `reach`; None if it never does.

    >>> first_reaching({"reward": [0.1, 0.9], "seconds": [3.0, 5.0], "samples": [8, 16]}, 0.8)
    {'step': 2, 'seconds': 5.0, 'samples': 16}
    """
    for i, reward in enumerate(one["reward"]):
        if reward >= reach:
            return {"step": i + 1, "seconds": round(one["seconds"][i], 3), "samples": one["samples"][i]}
    return None


def compare(curves: Mapping[str, Mapping[str, Curve]], reach: float) -> dict[str, Any]:
    """By arm, where each seed reached the reward. `ratio`: the peer's median time divided by grpo's, if all seeds of
    both reached it."""
    results: dict[str, Any] = {}
    for arm, by_seed in curves.items():
        found = {seed: first_reaching(one, reach) for seed, one in by_seed.items()}
        hits = [one for one in found.values() if one]
        medians = {f"median_{name}": statistics.median(one[name] for one in hits) for name in hits[0]} if hits else {}
        last = [one["reward"][-1] for one in by_seed.values()]
        results[arm] = {"reached": found, "all": len(hits) == len(found), **medians,
                        "last_reward": round(statistics.fmean(last), 4)}  # fmt: skip
    ours = results.get("grpo", {})
    for arm, row in results.items():
        if arm != "grpo" and row["all"] and ours.get("all"):
            row["ratio"] = round(row["median_seconds"] / ours["median_seconds"], 2)
    ratios = [row["ratio"] for row in results.values() if "ratio" in row]
    return {"ratio": min(ratios, default=None), "results": results}


def table(report: Mapping[str, Any]) -> str:
    work, reach = report["work"], report["reach"]
    lines = [f"{work['model']}, {work['task']}, {work['prompts']}x{work['group']}, at most {work['new']} new tokens"]
    for arm, row in report["results"].items():
        seeds = [
            f"seed {seed}: step {one['step']}, {one['seconds']:.1f} s" if one else f"seed {seed}: never"
            for seed, one in row["reached"].items()
        ]
        ratio = f"  ratio {row['ratio']}" if "ratio" in row else ""
        lines.append(f"{arm:>9}  reward {reach} at {'; '.join(seeds)}  last {row['last_reward']:.3f}{ratio}")
    return "\n".join([*lines, *(f"not run yet: {one}" for one in report["remaining"])])


def draw(curves: Mapping[str, Mapping[str, Curve]], reach: float, work: Work, path: Path) -> None:
    """Plots the reward over seconds and over samples: mean of the seeds, with a band from lowest to highest."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, name, label in zip(axes, ("seconds", "samples"), ("seconds of training", "completions"), strict=True):
        for arm, by_seed in curves.items():
            # Only where every seed has a value: elsewhere the mean would be over fewer seeds.
            first, last = max(one[name][0] for one in by_seed.values()), min(one[name][-1] for one in by_seed.values())
            x = np.linspace(first, last, 400)
            y = np.array([np.interp(x, one[name], one["reward"]) for one in by_seed.values()])
            axis.plot(x, y.mean(axis=0), color=COLOURS[arm], label=NAMES[arm])
            axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=COLOURS[arm], alpha=0.2, linewidth=0)
        axis.axhline(reach, color="0.6", linewidth=0.8, linestyle=":")
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(f"reward, mean of {SMOOTHED} steps")
    axes[0].set_ylim(bottom=0)
    axes[1].legend(loc="lower right", frameon=False)
    seeds = max(len(by_seed) for by_seed in curves.values())
    batch = f"{work.prompts} × {work.group}, learning rate {work.lr:g}"
    model = Path(work.model).name.removesuffix(".gguf")
    title = f"{model} on {work.task}, {batch}, {seeds} seeds: mean, lowest and highest"
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
