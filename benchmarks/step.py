"""Seconds of a whole GRPO step by phase: grpo and other trainers on the same work.

python benchmarks/step.py --model nano --prompts 16 --group 8 --new 32
python benchmarks/step.py --model smollm2 --prompts 4 --group 8 --new 32 --peer trl --json
python benchmarks/step.py --model smollm2 --prompts 64 --group 16 --new 128 --peer trl,trl-vllm
python benchmarks/step.py --shape qwen2.5-1.5b --prompts 64 --group 8 --prompt-tokens 256 --new 640 --peer trl-vllm \\
    --micro-batch 32 --steps 3

--shape trains random weights of a shape on random prompts with random rewards, so that almost every completion has full
length and almost every group has signal; all trainers load the same weights, prompts and reward function.

Figures are medians over the steps after the first few. Only steps that every trainer made are compared: completions,
and so steps, get shorter as a policy learns. With --rounds, the trainers take turns, and the fastest round of each
counts. The ratio is a trainer's step time divided by grpo's. MFU counts the FLOPs of the step's matmuls, without
padding and recomputation. "Updated" is the share of completions in the update: grpo leaves out groups without signal,
whose gradient is zero.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arms import Work, add_options, default_device, parse_work, run_in_process, summarize
from flags import Parser, exit_with, positive


def main() -> None:
    parser = Parser(__doc__)
    add_options(parser, model="nano", prompts=16, group=8, new=32, steps=60)
    parser.add_argument("--shape", default="", help="model shape of shapes.py with random weights, instead of a model")
    parser.add_argument("--prompt-tokens", type=positive, default=256, help="with --shape: tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of an arm, after at least four steps")
    parser.add_argument("--rounds", type=positive, default=1, help="number of rounds; in each, every arm runs once")
    parser.add_argument("--tflops", type=float, default=989.0, help="peak TFLOP/s of the GPU, for MFU; H200: 989")
    arguments = parser.parse_args()
    if arguments.shape and arguments.model != parser.get_default("model"):
        exit_with("--model: has no effect beside --shape; leave out one of them")
    with tempfile.TemporaryDirectory() as folder:
        more = random_work(arguments, folder) if arguments.shape else {}
        arms, work = parse_work(arguments, seconds=arguments.seconds, **more)
        rounds = run_rounds(arms, work, arguments.rounds)
    results = compare(rounds, arguments.tflops if work.device == "cuda" else 0.0)
    report = {
        "ratio": min((results[arm]["ratio"] for arm in arms[1:]), default=None),
        "work": vars(work) | ({"model": arguments.shape} if arguments.shape else {}),
        "results": results,
        "machine": machine(),
    }
    print(json.dumps(report) if arguments.json else table(report))


def random_work(arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Saves random weights in `folder` as the model to train; returns the fields of their work."""
    from shapes import SHAPES

    if arguments.shape not in SHAPES:
        exit_with(f"--shape {arguments.shape}: unknown; use {', '.join(SHAPES)}")
    from noise import save_random_model

    save_random_model(arguments.shape, arguments.device or default_device(), folder)
    arguments.model, arguments.task = folder, "noise"
    return {"prompt_tokens": arguments.prompt_tokens}


def run_rounds(arms: Sequence[str], work: Work, rounds: int) -> list[dict[str, list[dict[str, Any]]]]:
    """Steps by arm, for each round."""
    with tempfile.TemporaryDirectory() as folder:
        return [{arm: run_in_process(arm, work, Path(folder, arm)) for arm in arms} for _ in range(rounds)]


def compare(rounds: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]], tflops: float) -> dict[str, dict[str, Any]]:
    """Summary of each arm over the steps that every arm made in every round. `rounds`: steps by arm, for each round."""
    fewest = min(len(steps) for each in rounds for steps in each.values())
    measured = {arm: [summarize(each[arm][:fewest], tflops) for each in rounds] for arm in rounds[0]}
    # The fastest round of each arm counts: other work on the machine slows some rounds.
    results = {arm: min(several, key=lambda one: one["step_seconds"]) for arm, several in measured.items()}
    for result in results.values():
        result["ratio"] = round(result["step_seconds"] / results["grpo"]["step_seconds"], 2)
    return results


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{gpu}, torch {torch.__version__}"


def table(report: dict[str, Any]) -> str:
    work = report["work"]
    prompts = f"prompts of {work['prompt_tokens']} tokens, " if work["prompt_tokens"] else ""
    sizes = f"{work['prompts']}x{work['group']}, {prompts}at most {work['new']} new tokens"
    lines = [f"{work['model']}, {work['task']}, {sizes}"]
    names = ("trainer", "seconds", "ratio", "length", "updated", "peak GiB", "MFU", "start s")
    lines.append("".join(f"{name:>10}" for name in names) + "  phases")
    for arm, row in report["results"].items():
        mfu = "–" if row["mfu"] is None else f"{row['mfu']:.1%}"
        cells = (arm, f"{row['step_seconds']:.4g}", row["ratio"], row["mean_length"], f"{row['updated']:.0%}",
                 row["peak_gb"], mfu, row["start_seconds"])  # fmt: skip
        phases = ", ".join(f"{phase} {seconds:.4g}" for phase, seconds in row["phases"].items())
        lines.append("".join(f"{cell:>10}" for cell in cells) + f"  {phases}")
    return "\n".join([*lines, report["machine"]])


if __name__ == "__main__":
    main()
