"""Sampled tokens per second: grpo and other engines on the same work.

python benchmarks/rollout.py --shape smollm2-135m --prompts 64 --group 16 --prompt-tokens 64 --new 128 --peers hf,vllm
python benchmarks/rollout.py --shape qwen2.5-1.5b --prompts 32 --prompt-tokens 256 --new 4096 --uneven geometric \\
    --rounds 2 --peers vllm
python benchmarks/rollout.py --model smollm2 --device cpu --prompts 4 --group 8 --prompt-tokens 50 --new 32 --peers hf

--shape takes random weights, --model a real model. Every completion has --new tokens; with --uneven each has its own
limit, drawn once and the same for every engine, on average a third of --new: geometric and cut at --new, or uniform up
to two thirds of it. vLLM gets the limits as max_tokens of one request per completion. HF `generate` runs a batch until
its longest completion ends; tokens count up to each limit.

Peers that are not installed are left out. On a GPU each engine has its own process. On a CPU they take turns in one
process, so that other load slows all of them. The fastest round of each counts, without the first where there are
several. The ratio is grpo's tokens per second divided by the peer's. The floor is the time to read all weights and
cached keys and values once per token at 4.3 TB/s, with prompts read by every completion or once by its group. The last
floor also counts matmuls at 788 TFLOP/s: above 183 rows they take longer than reading the weights.
Peak memory is torch's, and for `--vllm best`, which has its own process, the memory in use on the GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from engines import ENGINES, PACKAGES, Engine, lengths_of, start_engine, synchronized_time
from flags import Parser, exit_with, natural, positive
from floor import FLOORS, Traffic, floors
from lengths import DISTRIBUTIONS

SHAPE = "smollm2-135m"
DTYPES = ("mixed", "half", "float32", "bfloat16")


def parse() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--shape", default="", help=f"model shape of shapes.py, with random weights; default: {SHAPE}")
    parser.add_argument("--model", default="", help="name or folder of a real model, instead of a shape")
    parser.add_argument("--prompts", type=positive, default=64, help="number of prompts")
    parser.add_argument("--group", type=positive, default=16, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=positive, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=positive, default=128, help="most new tokens of a completion")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default: cuda")
    parser.add_argument(
        "--dtype",
        default="",
        choices=("", *DTYPES),
        help="precision of grpo; default: mixed on a GPU, float32 on a CPU",
    )
    parser.add_argument("--peers", default="", help="hf, vllm, or both separated by a comma")
    parser.add_argument(
        "--vllm", choices=("best", "trl"), default="best", help="vLLM's settings: its best ones, or as TRL calls it"
    )
    parser.add_argument("--uneven", choices=("", *DISTRIBUTIONS), default="", help="distribution of lengths")
    parser.add_argument(
        "--rounds", type=positive, default=5, help="rounds of each engine; the first of several warms up"
    )
    parser.add_argument("--phases", action="store_true", help="one more round of grpo, for its seconds by phase")
    parser.add_argument("--threads", type=natural, default=0, help="CPU threads; default: one per core")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--engine", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check(parser, arguments)
    arguments.shape = "" if arguments.model else arguments.shape or SHAPE
    return arguments


def check(parser: Parser, arguments: argparse.Namespace) -> None:
    """Exits with one line about the first mistake."""
    for peer in filter(None, arguments.peers.split(",")):
        if peer not in ENGINES or peer == "grpo":
            parser.error(f"--peers {peer}: unknown; use hf, vllm, or both separated by a comma")
    if arguments.model and arguments.shape:
        parser.error("--shape: has no effect beside --model; leave out one of them")
    if arguments.model and "vllm" in arguments.peers:
        parser.error("--peers vllm: gets random weights only; use --shape, or leave vllm out")
    if arguments.uneven and arguments.device != "cuda":
        parser.error("--uneven: works only on a GPU; leave it out, or use --device cuda")
    import torch
    from shapes import SHAPES

    if arguments.shape and arguments.shape not in SHAPES:
        parser.error(f"--shape {arguments.shape}: unknown; use {', '.join(SHAPES)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no NVIDIA GPU found; use --device cpu, or run it on a machine with one")


def main() -> None:
    from grpo.errors import GrpoError

    try:
        compare(parse())
    except GrpoError as error:  # border: the command line
        exit_with(str(error))


def compare(arguments: argparse.Namespace) -> None:
    if arguments.engine:
        engine = start_engine(arguments.engine, arguments)
        print("RESULT " + json.dumps(measure(arguments, [engine])[0]), flush=True)
        return
    peers = [peer for peer in arguments.peers.split(",") if peer]
    absent = [peer for peer in peers if importlib.util.find_spec(PACKAGES[peer]) is None]
    names = [name for name in ["grpo", *peers] if name not in absent]
    if arguments.device == "cpu":
        results = dict(zip(names, measure_in_turns(arguments, names), strict=True))
    else:
        results = {name: measure_in_process(name) for name in names}
    ours = results["grpo"]["tokens_per_second"]
    for name, result in results.items():
        result["ratio"] = round(ours / result["tokens_per_second"], 2) if name != "grpo" else 1.0
    report = {"work": vars(arguments), "results": results, "absent": absent, "machine": machine()}
    print(json.dumps(report) if arguments.json else table(report))


def measure_in_process(engine: str) -> dict[str, Any]:
    """Measures an engine in its own process. In one process, engines would share memory and settings."""
    command = [sys.executable, *sys.argv, "--engine", engine]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            print(f"{engine}: {line.removeprefix('RESULT ')}", file=sys.stderr, flush=True)
            return json.loads(line.removeprefix("RESULT "))
    if done.returncode == 2:
        sys.exit(2)  # it has printed the reason
    sys.exit(f"rollout.py: {engine} failed; its error is above\n{done.stdout[-2000:]}")


def measure_in_turns(work: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measures the engines in this process, one round of each at a time."""
    import torch

    torch.set_num_threads(work.threads or os.cpu_count() or 1)
    return measure(work, [start_engine(name, work) for name in names])


def measure(work: argparse.Namespace, engines: Sequence[Engine]) -> list[dict[str, Any]]:
    """Result of each engine's fastest round, without the first of several."""
    times: list[list[float]] = [[] for _ in engines]
    expected, loads = int(lengths_of(work).sum()), []
    for number in range(work.rounds):
        for i, engine in enumerate(engines):
            begin = synchronized_time()
            tokens = engine.sample()
            times[i].append(synchronized_time() - begin)
            assert tokens == expected, f"sampled {tokens} tokens instead of {expected}"
            speed = f"{tokens / times[i][-1]:,.0f} tokens/s, load {os.getloadavg()[0]:.1f}"
            print(f"round {number + 1} of {work.rounds}, engine {i + 1} of {len(engines)}: {speed}", file=sys.stderr)
        loads.append(os.getloadavg()[0])
    return [
        describe(work, engine, seconds, statistics.fmean(loads)) for engine, seconds in zip(engines, times, strict=True)
    ]


def describe(work: argparse.Namespace, engine: Engine, rounds: Sequence[float], load: float) -> dict[str, Any]:
    """Result of an engine. `share_of_floor`: speed divided by each limit."""
    from grpo.model.plan.shape import shape_of

    lengths_N, seconds = lengths_of(work), min(rounds[1:] or rounds)
    speed = float(lengths_N.sum() / seconds)
    limits: dict[str, float] = {}
    if work.device == "cuda":
        traffic = Traffic.of(shape_of(engine.config.to_dict(), work.model or work.shape))
        limits = floors(traffic, lengths_N.reshape(work.prompts, work.group), work.prompt_tokens)
    return {
        "tokens": int(lengths_N.sum()),
        "mean_length": round(float(np.mean(lengths_N)), 1),
        "seconds": round(seconds, 4),
        "rounds": [round(each, 4) for each in rounds],
        "tokens_per_second": round(speed),
        "floor": {name: round(limit) for name, limit in limits.items()},
        "share_of_floor": {name: round(speed / limit, 4) for name, limit in limits.items()},
        "dropped": engine.dropped(),
        "peak_gb": round(engine.peak_bytes() / 2**30, 2),
        "start_seconds": round(engine.start_seconds, 2),
        "load": round(load, 1),
        "phases": engine.phases() if work.phases else {},
    }


def table(report: dict[str, Any]) -> str:
    work, first = report["work"], report["results"]["grpo"]
    lines = [
        f"{work['model'] or work['shape']}, {work['prompts']} x {work['group']}, "
        f"{work['prompt_tokens']} + {work['new']} tokens, mean length {first['mean_length']:,}"
    ]
    if first["floor"]:
        per_row, shared, multiplied = (first["floor"][key] for key in FLOORS)
        lines.append(
            f"floor: {per_row:,} tokens/s with prompts read per row, {shared:,} read once per group, "
            f"{multiplied:,} with the time of matmuls"
        )
    floor_names = "of floor", "(shared)", "(matmuls)"
    names = ("engine", "tokens/s", "seconds", "ratio", *floor_names, "dropped", "peak GiB", "start s")
    lines.append("".join(f"{name:>10}" for name in names) + "  phases")
    for name, row in report["results"].items():
        phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in row["phases"].items())
        shares = [f"{row['share_of_floor'][key]:.1%}" if row["floor"] else "–" for key in FLOORS]
        cells = (
            name,
            f"{row['tokens_per_second']:,}",
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.2f}",
            *shares,
            row["dropped"],
            f"{row['peak_gb']:.1f}",
            f"{row['start_seconds']:.2f}",
        )
        lines.append("".join(f"{cell:>10}" for cell in cells) + f"  {phases}")
    lines += [f"{peer}: left out, because it is not installed" for peer in report["absent"]]
    return "\n".join([*lines, report["machine"]])


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{gpu}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
