"""What each rank holds: the three modes, the weights that a mode holds in 16 bits, and the choice of a mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from grpo.errors import GrpoError
from grpo.model.plan.gpus import GIB
from grpo.model.plan.shape import Shape

Shard = Literal["none", "optimizer", "weights"]
SHARDS: Mapping[Shard, str] = {
    "none": "replicated",
    "optimizer": "A: moments sharded",
    "weights": "B: 16-bit layers, masters sharded",
}
"""By `scale.shard`, in the order in which they are tried: each holds less than the one before and sends no less."""
BUCKET, ALIGNMENT = 2**26, 8
"""Elements of a flat bucket, 256 MiB in float32, and of which an interval is a multiple: copies of
`grpo.distributed.buckets`', so that planning imports no torch; a test checks that they are equal."""


def narrow_parameters(shape: Shape) -> int:
    """Weights that mode B holds in the precision of computation: linear layers and an untied output layer."""
    return shape.linear_parameters + (0 if shape.tied else shape.embedding)


def padded(elements: int, ranks: int) -> int:
    """Elements of flat buckets, in each of which every rank owns an equal interval.

    >>> padded(10, 4), padded(2**26 + 1, 3)
    (32, 67108896)
    """
    full, rest = divmod(elements, BUCKET)
    unit = ranks * ALIGNMENT
    return (full * -(-BUCKET // unit) + -(-rest // unit)) * unit


def pick_shard(peak: Callable[[Shard], int], room: float, ranks: int) -> Shard | None:
    """The first mode whose predicted peak fits into `room` bytes; None if none does. One rank has nothing to share.

    >>> pick_shard({"none": 90, "optimizer": 70, "weights": 50}.__getitem__, 80, ranks=8)
    'optimizer'
    """
    return next((shard for shard in SHARDS if (shard == "none" or ranks > 1) and peak(shard) <= room), None)


def refuse_shard(shard: Shard, peak: Callable[[Shard], int], room: float, ranks: int) -> GrpoError:
    """The error of a requested mode that does not fit."""
    other = pick_shard(peak, room, ranks)
    remedy = f"use {other}" if other else "no mode fits; use more GPUs or a smaller model"
    return GrpoError(
        f"field scale.shard: {shard} takes about {peak(shard) / GIB:.1f} GiB on each of {ranks} ranks, and "
        f"{room / GIB:.1f} GiB are free; {remedy} (see grpo plan)"
    )
