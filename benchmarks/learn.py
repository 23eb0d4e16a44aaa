"""How soon the reward is high: ours and what one would use instead, same problems, rewards, batch, rate and seeds.

python benchmarks/learn.py --peer trl --seeds 3 --steps 60 --picture docs/images/against-trl.png
python benchmarks/learn.py --model nano --prompts 4 --group 4 --steps 6 --seeds 2 --peer trl

Every arm and seed is a process, and its steps a file in --out; what is there already is not made again, so that
--minutes cuts the work into slices: run the same command again until nothing is left. Time counts from the first step
on: loading is told apart, and nobody evaluates. The reward is smoothed over 5 steps; --reach is the reward waited for.
The picture needs matplotlib; where that is missing, run the command again elsewhere with the folder of --out, and with
--device as it was there.
"""

from __future__ import annotations

import argparse
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

from arms import Work, add_work, chosen, read, run_apart

SMOOTHED = 5
"""Steps that a point of a curve is the mean of."""
NAMES = {"grpo": "ours", "trl": "TRL", "trl-vllm": "TRL + vLLM"}
COLOURS = {"grpo": "#2a78b5", "trl": "#c1651b", "trl-vllm": "#5b8c3e"}

Curve = Mapping[str, Sequence[float]]
"""reward (smoothed), seconds and samples, one of each for every step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work(parser, model="smollm2", prompts=64, group=16, new=32, steps=60)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--reach", type=float, default=0.8, help="the reward waited for")
    parser.add_argument("--out", type=Path, default=Path("learn"), help="folder of the steps, kept for the next time")
    parser.add_argument("--picture", type=Path, default=None, help="PNG to draw; default: learn.png in --out")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no arm that would not end within these")
    arguments = parser.parse_args()
    arms, work = chosen(arguments)
    left = run_all(arms, work, arguments.seeds, arguments.out, arguments.minutes)
    report = {"work": vars(work), "reach": arguments.reach, "left": left}
    curves = {arm: found for arm in arms if (found := curves_of(arm, work, arguments.seeds, arguments.out))}
    report |= against(curves, arguments.reach)
    if curves:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "learn.json").write_text(json.dumps(report | {"curves": curves}))
        draw(curves, arguments.reach, work, arguments.picture or arguments.out / "learn.png")
    print(json.dumps(report) if arguments.json else table(report))


def run_all(arms: Sequence[str], work: Work, seeds: int, out: Path, minutes: float) -> list[str]:
    """What is left to do. Seed by seed, so that an unfinished comparison is still one."""
    begun, left = time.monotonic(), []
    longest = dict.fromkeys(arms, 0.0)
    for seed in range(1, seeds + 1):
        for arm in arms:
            place = rows_of(arm, work, seed, out)
            expected_end = time.monotonic() - begun + longest[arm]
            if not place.exists() and (left or 0 < 60 * minutes < expected_end):
                left.append(f"{arm} seed {seed}")
                continue
            if not place.exists():
                print(f"{arm}, seed {seed} of {seeds}", file=sys.stderr)
                run_apart(arm, replace(work, seed=seed), place)
            rows = read(place)
            longest[arm] = max(longest[arm], rows[0]["start_seconds"] + sum(row["seconds"] for row in rows))
    return left


def rows_of(arm: str, work: Work, seed: int, out: Path) -> Path:
    """Other work gets other files."""
    key = hashlib.sha256(json.dumps(asdict(replace(work, seed=seed))).encode()).hexdigest()[:8]
    return out / f"{arm}-{seed}-{key}.jsonl"


def curves_of(arm: str, work: Work, seeds: int, out: Path) -> dict[str, Any]:
    """By seed."""
    places = {seed: rows_of(arm, work, seed, out) for seed in range(1, seeds + 1)}
    per_step = work.prompts * work.group
    return {str(seed): curve(read(place), per_step) for seed, place in places.items() if place.exists()}


def curve(rows: Sequence[Mapping[str, Any]], per_step: int) -> dict[str, list[float]]:
    """
    >>> rows = [{"reward": float(i), "seconds": 2.0} for i in range(7)]
    >>> curve(rows, per_step=8)["reward"], curve(rows, per_step=8)["seconds"][-1], curve(rows, per_step=8)["samples"][0]
    ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], 14.0, 8)
    """
    rewards = [row["reward"] for row in rows]
    spent = 0.0
    seconds = [spent := spent + row["seconds"] for row in rows]
    smooth = [statistics.fmean(rewards[max(0, i + 1 - SMOOTHED) : i + 1]) for i in range(len(rewards))]
    return {"reward": smooth, "seconds": seconds, "samples": [per_step * (i + 1) for i in range(len(rewards))]}


def reached(one: Curve, reach: float) -> dict[str, float] | None:
    """Step, seconds and samples at which the smoothed reward first is `reach`; None where it never is.

    >>> reached({"reward": [0.1, 0.9], "seconds": [3.0, 5.0], "samples": [8, 16]}, 0.8)
    {'step': 2, 'seconds': 5.0, 'samples': 16}
    """
    for i, reward in enumerate(one["reward"]):
        if reward >= reach:
            return {"step": i + 1, "seconds": round(one["seconds"][i], 3), "samples": one["samples"][i]}
    return None


def against(curves: Mapping[str, Mapping[str, Curve]], reach: float) -> dict[str, Any]:
    """By arm, when each seed got there; `ratio`: the peer's median time over ours, where all seeds of both did."""
    results: dict[str, Any] = {}
    for arm, by_seed in curves.items():
        found = {seed: reached(one, reach) for seed, one in by_seed.items()}
        there = [one for one in found.values() if one]
        medians = (
            {f"median_{name}": statistics.median(one[name] for one in there) for name in there[0]} if there else {}
        )
        last = [one["reward"][-1] for one in by_seed.values()]
        results[arm] = {"reached": found, "all": len(there) == len(found), **medians,
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
        told = [
            f"seed {seed}: step {one['step']}, {one['seconds']:.1f} s" if one else f"seed {seed}: never"
            for seed, one in row["reached"].items()
        ]
        ratio = f"  its/ours {row['ratio']}" if "ratio" in row else ""
        lines.append(f"{arm:>9}  reward {reach} at {'; '.join(told)}  last {row['last_reward']:.3f}{ratio}")
    return "\n".join([*lines, *(f"left: {one}" for one in report["left"])])


def draw(curves: Mapping[str, Mapping[str, Curve]], reach: float, work: Work, path: Path) -> None:
    """Reward against seconds and against samples: mean over the seeds, with the band from the lowest to the highest."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, name, label in zip(axes, ("seconds", "samples"), ("seconds of training", "completions"), strict=True):
        for arm, by_seed in curves.items():
            # Where every seed has a value: beyond the shortest a mean would be of other seeds than before.
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
