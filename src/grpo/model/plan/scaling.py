"""A step on several GPUs: its three collectives, its seconds, and how it scales. All of it is predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from grpo.model.plan.gpus import SPEEDS, USABLE, Speed, gpu_memory, timed_gpu
from grpo.model.plan.links import LINKS, Cluster, Operation, sent
from grpo.model.plan.memory import Memory, Precision, memory_of
from grpo.model.plan.seconds import seconds_of
from grpo.model.plan.shape import Shape
from grpo.model.plan.shard import SHARDS, Shard, narrow_parameters, padded, pick_shard
from grpo.model.plan.work import Needs, Work

FLOAT32, INT64 = 4, 8
COMPLETION_BYTES = 190
"""A pickled completion without its arrays and text."""
PICKLED = 250e6
"""Bytes of groups that a rank packs and unpacks per second: measured on one core of a busy CPU."""


@dataclass(frozen=True)
class Collective:
    name: str
    operation: Operation
    size: int
    """Bytes of the whole buffer."""
    sent: int
    """Bytes that each rank sends and receives over the ring."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, and on which GPU; the number of GPUs is not part of it."""

    shape: Shape
    work: Work
    needs: Needs
    precision: Precision
    gpu: str = ""
    """Its name or memory; empty: none is named."""
    shard: Shard | Literal["auto"] = "auto"
    lora: int = 0
    on_gpu: bool = True
    gradient_checkpointing: bool = False
    reward_model: Shape | None = None

    @property
    def speed(self) -> Speed:
        return SPEEDS[timed_gpu(self.gpu)]

    def memory(self, shard: Shard, ranks: int) -> Memory:
        return memory_of(
            self.shape,
            self.work,
            self.needs,
            self.precision,
            on_gpu=self.on_gpu,
            lora=self.lora,
            gradient_checkpointing=self.gradient_checkpointing,
            reward_model=self.reward_model,
            shard=shard,
            ranks=ranks,
            available=self.usable,
        )

    @property
    def usable(self) -> int:
        """Bytes of the GPU for tensors; 0: none is named."""
        return round(USABLE * gpu_memory(self.gpu)) if self.gpu else 0

    def fits(self, memory: Memory) -> bool | None:
        return memory.peak <= self.usable if self.gpu else None

    def mode(self, ranks: int) -> Shard:
        """The requested mode, or the first that fits; the most sparing one if none does. Without a GPU: replicated."""
        if self.shard != "auto":
            return self.shard
        if not self.gpu or ranks == 1:
            return "none"
        return pick_shard(lambda shard: self.memory(shard, ranks).peak, self.usable, ranks) or "weights"

    @property
    def trained(self) -> tuple[int, ...]:
        """Weights of each optimizer: of the policy, and of a critic."""
        own = self.shape.adapter_parameters(self.lora) if self.lora else self.shape.parameters
        return (own, own if self.lora else self.shape.body) if self.needs.critic else (own,)

    @property
    def characters(self) -> int:
        """Of a token: about four with a large vocabulary, and one with a small one."""
        return 4 if self.shape.vocabulary > 1000 else 1


def group_bytes(run: Run) -> int:
    """Bytes of a step's groups when they are gathered: tokens, the sampler's log-probabilities, text, annotations.

    Several updates need log-probabilities of the old policy. They are annotations too if there are others; otherwise
    they are computed after the advantages, and the groups are gathered a second time.
    """
    work, annotations = run.work, run.needs.reference + run.needs.critic
    several = work.epochs * work.minibatches > 1
    token = INT64 + FLOAT32 * (1 + annotations + (several and annotations > 0)) + run.characters
    prompt = work.prompt_tokens * (INT64 + run.characters)
    read = (work.observed_tokens or 0) * (INT64 + run.characters)
    size = work.prompts * prompt + work.completions * (COMPLETION_BYTES + token * work.sampled_tokens + read)
    if several and not annotations:
        size += size + 2 * FLOAT32 * work.completions * work.sampled_tokens
    return size


def reduced_bytes(run: Run, elements: int, shard: Shard, ranks: int) -> int:
    """Bytes of the flat float32 buckets in which gradients are added over the ranks at every update."""
    return FLOAT32 * sum(padded(count, ranks) for _, count in _formats(run, elements, shard))


def published_bytes(run: Run, elements: int, shard: Shard, ranks: int) -> int:
    """Bytes of the flat buckets in which every rank receives the new weights."""
    if shard == "none":
        return 0
    return sum(size * padded(count, ranks) for size, count in _formats(run, elements, shard))


def _formats(run: Run, elements: int, shard: Shard) -> list[tuple[int, int]]:
    """(bytes of a weight, number of weights) of each number format of an optimizer's weights, in buckets of its own."""
    stored = FLOAT32 if run.lora else run.precision.weights
    if shard != "weights" or run.lora or not run.precision.mixed:
        return [(stored, elements)]
    narrow = narrow_parameters(run.shape) - (run.shape.parameters - elements)
    return [(stored, elements - narrow), (run.precision.values, narrow)]


def collectives(run: Run, shard: Shard, cluster: Cluster, ranks: int) -> list[Collective]:
    """The collectives of a step on `ranks` GPUs of the cluster; none for one GPU."""
    if ranks == 1:
        return []
    bandwidth, updates = LINKS[cluster.slowest(ranks)].bandwidth, run.work.epochs * run.work.minibatches
    groups = group_bytes(run)
    crossing = sent("all_gather", groups, ranks) / bandwidth if ranks > cluster.gpus else 0.0
    gathered = sent("all_gather", groups, ranks)
    found = [Collective("groups gathered", "all_gather", groups, gathered, groups / PICKLED + crossing)]
    reduce: Operation = "all_reduce" if shard == "none" else "reduce_scatter"
    for name, operation, size in (
        ("gradient reduced", reduce, sum(reduced_bytes(run, each, shard, ranks) for each in run.trained)),
        ("weights published", "all_gather", sum(published_bytes(run, each, shard, ranks) for each in run.trained)),
    ):
        bytes_sent = updates * sent(operation, size, ranks)
        found.append(Collective(name, operation, updates * size, bytes_sent, bytes_sent / bandwidth))
    return found


def predicted_step(run: Run, cluster: Cluster, ranks: int) -> dict[str, Any]:
    """A step on `ranks` GPUs of the cluster: each does its share of the work, then all meet."""
    shard = run.mode(ranks)
    phases = seconds_of(run.shape, run.work.share(ranks), run.needs, run.speed, lora=run.lora)
    exchanged = collectives(run, shard, cluster, ranks)
    phases["exchange"] = sum(each.seconds for each in exchanged)
    return {
        "gpus": ranks,
        "shard": shard,
        "fits": run.fits(run.memory(shard, ranks)),
        "prompts": run.work.prompts,
        "idle": max(0, ranks - run.work.prompts),
        "link": cluster.slowest(ranks) if ranks > 1 else None,
        "phases": phases,
        "seconds": sum(phases.values()),
        "collectives": [asdict(each) for each in exchanged],
    }


def curve(run: Run, cluster: Cluster, *, weak: bool) -> list[dict[str, Any]]:
    """A step on 1, 2, 4, … GPUs. Strong scaling: the same prompts on all together. Weak: as many for each GPU."""
    rows: list[dict[str, Any]] = []
    for ranks in doublings(cluster.ranks):
        own = replace(run, work=replace(run.work, prompts=run.work.prompts * ranks)) if weak else run
        step = predicted_step(own, cluster, ranks)
        alone = rows[0]["seconds"] if rows else step["seconds"]
        rows.append({**step, "efficiency": alone / step["seconds"] / (1 if weak else ranks)})
    return rows


def scaled(run: Run, cluster: Cluster) -> dict[str, Any]:
    """Memory by mode, the predicted step on all GPUs, and both curves."""
    modes = {shard: run.memory(shard, cluster.ranks) for shard in SHARDS}
    return {
        "shard": run.mode(cluster.ranks),
        "modes": {
            shard: {"memory": dict(found.components), "peak": found.peak, "fits": run.fits(found)}
            for shard, found in modes.items()
        },
        "step": predicted_step(run, cluster, cluster.ranks),
        "strong": curve(run, cluster, weak=False),
        "weak": curve(run, cluster, weak=True),
    }


def assumptions(cluster: Cluster, gpu: str) -> dict[str, Any]:
    """The cluster, its links, and the GPU whose seconds are assumed."""
    used = {cluster.inside, cluster.slowest(cluster.ranks)}
    return {
        **asdict(cluster),
        "ranks": cluster.ranks,
        "links": {name: asdict(link) for name, link in LINKS.items() if name in used},
        "seconds_of": timed_gpu(gpu),
    }


def doublings(most: int) -> list[int]:
    """
    >>> doublings(12)
    [1, 2, 4, 8, 12]
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
