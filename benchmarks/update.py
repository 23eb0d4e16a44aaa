"""Time, MFU and memory of the update on a GPU, for a model with random weights.

python benchmarks/update.py --shape qwen2.5-1.5b --prompts 32 --group 16 --prompt-len 128 --new 512 \
    [--micro 16384] [--ways fused,checkpointed,apart,stock] [--json]

Ways: `fused`, the blocks of grpo.model.fused; `checkpointed`, the same with gradient checkpointing; `apart`, the prompt
is computed again for every completion; `stock`, transformers' blocks under autocast. MFU counts the FLOPs of the
model's matmuls once forward and twice backward, without recomputation, against --peak.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import torch
from shapes import SHAPES, random_policy

from grpo.config import Config, Optimizer, System
from grpo.config.schema import Loss, resolve
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.plan import find_shape
from grpo.model.plan.compute import model_flops
from grpo.model.plan.work import Work
from grpo.model.policy import Policy
from grpo.training.gradient import accumulate_gradients
from grpo.types import Completion, Group, Problem

WAYS = ("fused", "checkpointed", "apart", "stock")


def random_groups(arguments: argparse.Namespace, vocabulary: int) -> list[Group]:
    """Groups of full-length completions, each with an advantage."""
    rng = np.random.default_rng(0)

    def completion() -> Completion:
        tokens = rng.integers(3, vocabulary, arguments.new)
        return Completion(
            "",
            tokens,
            np.full(arguments.new, -10.0, np.float32),
            "length",
            reward=1.0,
            advantages=np.full(arguments.new, rng.choice([-1.0, 1.0]), np.float32),
        )

    return [
        Group(
            Problem(str(i), "", ""),
            rng.integers(3, vocabulary, arguments.prompt_len),
            tuple(completion() for _ in range(arguments.group)),
            0,
        )
        for i in range(arguments.prompts)
    ]


def update_flops(arguments: argparse.Namespace, apart: bool) -> float:
    """FLOPs of the model's matmuls, forward and backward, without recomputation."""
    shape = find_shape(arguments.shape)
    prompts, group = arguments.prompts, arguments.group
    if apart:
        prompts, group = prompts * group, 1
    work = Work(prompts=prompts, group_size=group, prompt_tokens=arguments.prompt_len, new_tokens=arguments.new)
    return model_flops(shape, work)


def measure(way: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    policy = random_policy(arguments.shape, "cuda", arguments.dtype)
    policy.gradient_checkpointing = way == "checkpointed"
    groups = random_groups(arguments, policy.model.config.vocab_size)
    if way == "apart":
        groups = [replace(group, completions=(one,)) for group in groups for one in group.completions]
    config = resolve(
        Config(
            max_new_tokens=arguments.new,
            loss=Loss(beta=0.0),
            system=System(token_budget=arguments.micro, dtype=arguments.dtype),
        )
    )
    optimizer = make_optimizer(policy, Optimizer(adam_beta2=0.999))
    seconds = []
    fused_for = Policy.fused_for
    if way == "stock":
        Policy.fused_for = lambda *_: None  # type: ignore[method-assign]
    try:
        for step in range(arguments.steps):
            if step == 1:
                torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            accumulate_gradients(policy, groups, config)
            torch.cuda.synchronize()
            middle = time.perf_counter()
            take_step(policy, optimizer, lr=1e-6, grad_clip=1.0)
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - begin, middle - begin))
    finally:
        Policy.fused_for = fused_for  # type: ignore[method-assign]
    whole, gradient = min(seconds[1:])
    flops = update_flops(arguments, way == "apart")
    return {
        "way": way,
        "first_s": round(seconds[0][0], 2),
        "update_s": round(whole, 3),
        "optimizer_s": round(whole - gradient, 3),
        "tokens": sum(len(g.prompt_tokens) + sum(map(len, g.completions)) for g in groups),
        "tflop_per_s": round(flops / whole / 1e12, 1),
        "mfu": round(flops / whole / 1e12 / arguments.peak, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-1.5b", help=", ".join(SHAPES))
    parser.add_argument("--prompts", type=int, default=32, help="prompts per update")
    parser.add_argument("--group", type=int, default=16, help="completions per prompt")
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=512, help="tokens of a completion")
    parser.add_argument("--micro", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--steps", type=int, default=3, help="updates; the fastest after the first counts")
    parser.add_argument("--dtype", default="mixed", choices=["mixed", "half", "bfloat16"])
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to measure, separated by commas")
    parser.add_argument("--peak", type=float, default=989.0, help="peak TFLOP/s of the GPU in dense bfloat16")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    for way in ways:
        if way not in WAYS:
            parser.error(f"--ways {way}: unknown; use {', '.join(WAYS)}")
    if not torch.cuda.is_available():
        raise SystemExit("update.py: no CUDA GPU found; run it on a machine with one")
    rows = []
    for way in ways:
        rows.append(measure(way, arguments))
        torch.cuda.empty_cache()
        if not arguments.json:
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"work": vars(arguments), "gpu": torch.cuda.get_device_name(), "ways": rows}))


if __name__ == "__main__":
    main()
