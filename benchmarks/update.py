"""Time, MFU and memory of the update, predicted and measured, for a model with random weights.

python benchmarks/update.py --shape qwen2.5-1.5b --prompts 32 --group 16 --prompt-len 128 --new 512 \
    [--uneven geometric] [--lora 32] [--micro 16384] [--ways fused,checkpointed,apart,stock] [--json]
python benchmarks/update.py --shape smallest --device cpu --prompts 2 --group 4 --new 64    # a try-out

Ways: `fused`, the blocks of grpo.model.fused; `checkpointed`, the same with gradient checkpointing; `apart`, the prompt
is computed again for every completion; `stock`, transformers' blocks under autocast, the only way on a CPU. MFU counts
the FLOPs of the model's matmuls and attention once forward and twice backward, without recomputation and, with LoRA,
without gradients of frozen weights, against --peak. Padding is the share of computed tokens that belong to no prompt or
completion; repeated, the share that computes a prompt again because its group is split over micro-batches. Predictions
are those of grpo plan: seconds of an H200 in the way `fused`, and memory without a rollout's KV cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from lengths import DISTRIBUTIONS, draw_lengths
from shapes import SHAPES, random_policy

from grpo.config import Config, Lora, Optimizer, System
from grpo.config.schema import Loss, resolve
from grpo.model.lora import adapt
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.packing import pack
from grpo.model.plan import GIB, PRECISIONS, Needs, Shape, Work, memory_of, shape_of
from grpo.model.plan.compute import PackedSize, model_flops
from grpo.model.plan.gpus import MEASURED_GPU, SPEEDS
from grpo.model.plan.seconds import update_seconds
from grpo.model.policy import Policy
from grpo.training.gradient import accumulate_gradients
from grpo.types import Completion, Group, Problem

WAYS = ("fused", "checkpointed", "apart", "stock")
Figures = dict[str, float | str | None]


def random_groups(arguments: argparse.Namespace, vocabulary: int) -> list[Group]:
    """Groups of completions of full or drawn length, each with an advantage."""
    rng = np.random.default_rng(0)
    lengths_PG = draw_lengths(arguments.uneven, arguments.prompts * arguments.group, arguments.new)

    def completion(length: int) -> Completion:
        tokens, zeros = rng.integers(3, vocabulary, length), np.zeros(length, np.float32)
        return Completion(
            "", tokens, zeros - 10, "length", reward=1.0, advantages=zeros + np.float32(rng.choice([-1, 1]))
        )

    return [
        Group(
            Problem(str(i), "", ""),
            rng.integers(3, vocabulary, arguments.prompt_len),
            tuple(map(completion, lengths)),
            0,
        )
        for i, lengths in enumerate(lengths_PG.reshape(arguments.prompts, arguments.group))
    ]


def packed_size(groups: Sequence[Group]) -> PackedSize:
    return PackedSize.of((len(group.prompt_tokens), list(map(len, group.completions))) for group in groups)


def padding(groups: Sequence[Group], token_budget: int) -> Figures:
    """Micro-batches, and what they compute more than once or in vain."""
    batches = pack(groups, token_budget)
    computed = sum(len(batch.tokens_T) for batch in batches)
    used = sum(int(batch.layout.prompt_lengths_P.sum()) + int(batch.mask_NL.sum()) for batch in batches)
    return {
        "micro_batches": len(batches),
        "padding": 1 - used / computed,
        "repeated": round((used - packed_size(groups).tokens) / computed, 4),
    }


def predicted(way: str, arguments: argparse.Namespace, shape: Shape, size: PackedSize) -> Figures:
    """Seconds and memory by grpo plan."""
    prompts, group = arguments.prompts, arguments.group
    if way == "apart":
        prompts, group = prompts * group, 1
    memory = memory_of(
        shape,
        Work(
            prompts=prompts,
            group_size=group,
            prompt_tokens=arguments.prompt_len,
            new_tokens=arguments.new,
            token_budget=arguments.micro,
        ),
        Needs(reference=False, critic=False),
        PRECISIONS[arguments.dtype],
        on_gpu=arguments.device == "cuda",
        lora=arguments.lora,
        gradient_checkpointing=way == "checkpointed",
        stock=way == "stock",
    )
    unused = memory.components["keys/values"] if arguments.device == "cuda" else 0  # nothing is sampled
    timed = way in ("fused", "apart")
    seconds = update_seconds(shape, size, SPEEDS[MEASURED_GPU], lora=arguments.lora) if timed else None
    return {
        "predicted_s": seconds and round(seconds, 3),
        "predicted_gib": round((memory.phases["update"] - unused) / GIB, 2),
    }


@contextmanager
def blocks(way: str) -> Iterator[None]:
    """Runs transformers' blocks in the way `stock`."""
    fused_for = Policy.fused_for
    if way == "stock":
        Policy.fused_for = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Policy.fused_for = fused_for  # type: ignore[method-assign]


def synchronized_time(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(way: str, arguments: argparse.Namespace) -> Figures:
    policy = random_policy(arguments.shape, arguments.device, arguments.dtype)
    if arguments.lora:
        policy.name = "nano"  # peft needs the name of a base model
        adapt(policy, Lora(rank=arguments.lora), seed=0)
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
    optimizer, on_gpu = make_optimizer(policy, Optimizer(adam_beta2=0.999)), arguments.device == "cuda"

    def update(of: Sequence[Group]) -> tuple[float, float]:
        """Seconds of an update, and of its optimizer step."""
        begin = synchronized_time(arguments.device)
        accumulate_gradients(policy, of, config)
        middle = synchronized_time(arguments.device)
        take_step(policy, optimizer, lr=1e-6, grad_clip=1.0)
        end = synchronized_time(arguments.device)
        return end - begin, end - middle

    with blocks(way):
        # One completion loads or compiles every kernel.
        warmup, _ = update([replace(groups[0], completions=groups[0].completions[:1])])
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        whole, optimizing = min(update(groups) for _ in range(arguments.steps))
    shape, size = shape_of(SHAPES[arguments.shape].to_dict(), arguments.shape), packed_size(groups)
    rate = model_flops(shape, size, lora=arguments.lora) / whole / 1e12
    return {
        "way": way,
        "warmup_s": round(warmup, 2),
        "update_s": round(whole, 3),
        "optimizer_s": round(optimizing, 3),
        "tokens": size.tokens,
        "token_budget": policy.token_budget or arguments.micro,
        **padding(groups, policy.token_budget or arguments.micro),
        "tflop_per_s": round(rate, 3 if rate < 1 else 1),
        "mfu": round(rate / arguments.peak, 3) if on_gpu else None,
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2) if on_gpu else None,
        **predicted(way, arguments, shape, size),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-1.5b", choices=list(SHAPES), help="shape of the model")
    parser.add_argument("--prompts", type=int, default=32, help="prompts per update")
    parser.add_argument("--group", type=int, default=16, help="completions per prompt")
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=512, help="most tokens of a completion")
    parser.add_argument("--uneven", choices=("", *DISTRIBUTIONS), default="", help="distribution of lengths")
    parser.add_argument("--lora", type=int, default=0, help="rank of LoRA adapters on every linear layer; 0: none")
    parser.add_argument("--micro", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--steps", type=int, default=2, help="updates after the warm-up; the fastest counts")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="", choices=("", *PRECISIONS), help="default: mixed; float32 on a CPU")
    parser.add_argument("--ways", default="", help="ways to measure, separated by commas; default: all")
    parser.add_argument("--peak", type=float, default=989.0, help="peak TFLOP/s of the GPU in dense bfloat16")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    arguments.dtype = arguments.dtype or ("mixed" if on_gpu else "float32")
    arguments.ways = arguments.ways.split(",") if arguments.ways else list(WAYS if on_gpu else ("stock",))
    for way in arguments.ways:
        if way not in WAYS or (way != "stock" and not on_gpu):
            parser.error(f"--ways {way}: unknown on {arguments.device}; use {', '.join(WAYS) if on_gpu else 'stock'}")
    if on_gpu and not torch.cuda.is_available():
        raise SystemExit("update.py: no CUDA GPU found; run it on a machine with one, or try it with --device cpu")
    return arguments


def main() -> None:
    arguments = parse()
    rows = []
    for way in arguments.ways:
        rows.append(measure(way, arguments))
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        if not arguments.json:
            print(
                "  ".join(f"{name} {'–' if value is None else value}" for name, value in rows[-1].items()), flush=True
            )
    if arguments.json:
        gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
        print(json.dumps({"work": vars(arguments), "gpu": gpu, "ways": rows}))


if __name__ == "__main__":
    main()
