"""Predicted and measured peak memory of one rank of many, on one GPU: the other ranks are simulated.

python benchmarks/one_of_many.py --shape qwen2.5-7b --gpus 8 --shards weights,optimizer [--json]

One process holds what rank 0 of --gpus ranks holds, and runs training steps with its share of the prompts. Messages of
the other ranks are copies of its own, and collectives are replaced by local copies of the same sizes; their seconds and
NCCL's own buffers are not measured. Weights are random. Predicted as by `grpo plan SHAPE --gpus N --shard MODE` with
the same flags.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from plan import peak_on_cpu
from recipes import random_weights
from shapes import SHAPES

from grpo.config import Config, Evaluation, Scale, System
from grpo.distributed import sharded
from grpo.distributed.world import World
from grpo.model.plan import GIB, shape_of
from grpo.training.loop import loop
from grpo.training.memory_check import predicted_memory
from grpo.training.session import Session


class Simulated(World):
    """Rank 0 of many: the others send what this one sends."""

    divided = 0
    """Items that `mine` divided last."""

    def mine(self, items: Sequence[Any]) -> list[Any]:
        self.divided = len(items)
        return super().mine(items)

    def gather(self, items: Sequence[Any]) -> list[Any]:
        return super().gather(items)[: self.divided]  # rank 0 has one more than some others

    def _exchange(self, text: bytes, failed: int = 0) -> list[bytes]:
        return [text] * self.size


def reduce_scatter(mine: torch.Tensor, flat: torch.Tensor, group: Any) -> None:
    mine.copy_(flat[: len(mine)])


def all_gather(flat: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    flat.view(-1, len(mine)).copy_(mine)


@contextmanager
def simulated_ranks(size: int) -> Iterator[World]:
    """The world of rank 0. Collectives of torch's fake process group leave tensors as they are."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = sharded.reduce_scatter, sharded.all_gather
    sharded.reduce_scatter, sharded.all_gather = reduce_scatter, all_gather
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield Simulated(rank=0, size=size, hosts=["simulated"] * size, tensors=dist.group.WORLD)
    finally:
        dist.destroy_process_group()
        sharded.reduce_scatter, sharded.all_gather = original


def measure(arguments: argparse.Namespace, shard: Any) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with (
        tempfile.TemporaryDirectory() as runs,
        random_weights(arguments.shape, arguments.prompt_tokens) as model,
        simulated_ranks(arguments.gpus) as world,
    ):
        config = Config(
            model=model,
            task="noise",
            algorithm=arguments.algorithm,
            run="measured",
            steps=arguments.steps,
            prompts_per_step=arguments.prompts_per_step,
            group_size=arguments.group_size,
            max_new_tokens=arguments.max_new_tokens,
            lr=1e-6,
            checkpoint_every=0,
            evaluation=Evaluation(every=0, problems=2, probes=0),
            system=System(runs=runs, dtype=arguments.dtype, token_budget=arguments.token_budget),
            scale=Scale(shard=shard),
        )
        session = Session.start(config, world=world)
        session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # no checkpoints
        optimizer = session.optimizer

        def train() -> None:
            with session.recorded():
                loop(session)

        if on_gpu:
            torch.cuda.synchronize()
            loading = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            train()
            measured = torch.cuda.max_memory_allocated()
        else:
            held = [*session.policy.model.parameters(), *optimizer.ranks.parameters]
            storages = [each.untyped_storage() for each in held]  # parts of one weight share one
            loaded = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
            loading, measured = 0, loaded + peak_on_cpu(train)
        moments = sum(tensor.nbytes for state in optimizer.adam.state.values() for tensor in state.values())
        shape, device = shape_of(SHAPES[arguments.shape].to_dict(), arguments.shape), session.policy.device
        predicted = predicted_memory(config, shape, arguments.prompt_tokens, device, shard=shard, ranks=arguments.gpus)
        spans = session.run.spans()
        norms = [value for _, value in session.run.series("grad_norm")]
        session.run.close()
    return {
        "shard": shard,
        "predicted": predicted.peak,
        "phases": dict(predicted.phases),
        "components": dict(predicted.components),
        "measured": measured,
        "ratio": round(predicted.peak / measured, 4),
        "while_loading": loading,
        "moments": moments,
        "norms": norms,
        "seconds": [
            {span["name"]: round(span["seconds"], 2) for span in spans if span["step"] == step}
            for step in range(arguments.steps)
        ],
    }


def show(arguments: argparse.Namespace, row: Mapping[str, Any]) -> None:
    work = f"{arguments.prompts_per_step} × {arguments.group_size}, {arguments.prompt_tokens} + "
    print(
        f"{arguments.shape}, {row['shard']}, one of {arguments.gpus}: {work}{arguments.max_new_tokens} tokens in all; "
        f"predicted {row['predicted'] / GIB:.2f} GiB, measured {row['measured'] / GIB:.2f} GiB, ratio {row['ratio']}"
    )
    for kind in ("phases", "components"):
        print(f"  {kind}: " + ", ".join(f"{name} {size / GIB:.2f}" for name, size in row[kind].items() if size))
    print(f"  moments {row['moments'] / GIB:.2f} GiB; while loading {row['while_loading'] / GIB:.2f} GiB")
    print(f"  gradient norms {row['norms']}; seconds {row['seconds']}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-7b", help=", ".join(SHAPES))
    parser.add_argument("--gpus", type=int, default=8, help="ranks")
    parser.add_argument("--shards", default="weights,optimizer", help="modes, as scale.shard, separated by commas")
    parser.add_argument("--algorithm", default="dr_grpo", help="preset")
    parser.add_argument("--dtype", default="auto", choices=["auto", "mixed", "half", "float32", "bfloat16"])
    parser.add_argument("--prompts-per-step", type=int, default=64, help="of all ranks together")
    parser.add_argument("--group-size", type=int, default=8, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens of a completion")
    parser.add_argument("--token-budget", type=int, default=4352, help="tokens per micro-batch")
    parser.add_argument("--steps", type=int, default=2, help="training steps")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parsed = parser.parse_args()
    rows = []
    for mode in parsed.shards.split(","):
        rows.append(measure(parsed, mode))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not parsed.json:
            show(parsed, rows[-1])
    if parsed.json:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(json.dumps({"machine": machine, "rows": rows}))
