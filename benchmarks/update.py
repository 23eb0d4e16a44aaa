"""One update on a GPU: seconds, share of the peak rate, and memory, for a model with random weights.

python benchmarks/update.py --shape qwen2.5-1.5b --prompts 32 --group 16 --prompt-len 128 --new 512 \
    [--micro 16384] [--ways fused,checkpointing,apart,stock] [--json]

Ways: `fused`, the blocks of grpo.model.fused; `checkpointing`, the same with gradient checkpointing; `apart`, every
completion packed with a prompt of its own; `stock`, transformers' blocks under autocast. The share of the peak counts
the operations of the model's matrix products once forward and twice backward, without recomputation, against --peak
TFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import torch
from shapes import random_policy

from grpo.config import Config, Optimizer, System
from grpo.config.schema import Loss, resolve
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.plan import find_shape
from grpo.model.plan.compute import model_flops
from grpo.model.plan.work import Work
from grpo.model.policy import Policy
from grpo.training.gradient import accumulate_gradients
from grpo.types import Completion, Group, Problem

WAYS = ("fused", "checkpointing", "apart", "stock")


def random_groups(arguments: argparse.Namespace, vocabulary: int) -> list[Group]:
    """Full-length completions with an advantage each."""
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


def operations(arguments: argparse.Namespace, apart: bool) -> float:
    """Operations of the model's matrix products, forward and backward, without recomputation."""
    shape = find_shape(arguments.shape)
    prompts, group = arguments.prompts, arguments.group
    if apart:
        prompts, group = prompts * group, 1
    work = Work(prompts=prompts, group_size=group, prompt_tokens=arguments.prompt_len, new_tokens=arguments.new)
    return model_flops(shape, work)


def measure(way: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    policy = random_policy(arguments.shape, "cuda", arguments.dtype)
    policy.gradient_checkpointing = way == "checkpointing"
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
    work = operations(arguments, way == "apart")
    return {
        "way": way,
        "first_s": round(seconds[0][0], 2),
        "update_s": round(whole, 3),
        "optimizer_s": round(whole - gradient, 3),
        "tokens": sum(len(g.prompt_tokens) + sum(map(len, g.completions)) for g in groups),
        "tflop_per_s": round(work / whole / 1e12, 1),
        "mfu": round(work / whole / 1e12 / arguments.peak, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--micro", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", default="mixed", choices=["mixed", "half", "bfloat16"])
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s of the GPU in bfloat16, dense")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    for way in ways:
        if way not in WAYS:
            parser.error(f"--ways: {way!r} is not a way; use {', '.join(WAYS)}")
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
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
