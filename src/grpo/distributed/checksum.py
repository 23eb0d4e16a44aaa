"""A checksum of the weights, to notice ranks that have drifted apart."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from grpo.distributed.world import World

WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
"""Integers by their size in bytes."""


def differing(named: Iterable[tuple[str, torch.Tensor]], world: World) -> list[int]:
    """The ranks whose tensors differ from those of rank 0."""
    if world.size == 1:
        return []
    sums = world.meet(checksum([tensor for _, tensor in named]))
    return [rank for rank, found in enumerate(sums) if found != sums[0]]


@torch.no_grad()
def checksum(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Of each tensor, the sum of its bits as integers: equal for equal tensors, and changed by any single change.

    >>> checksum([torch.tensor([1.0, 2.0])]) == checksum([torch.tensor([1.0, 2.0])])
    True
    >>> checksum([torch.tensor([1.0, 2.0])]) == checksum([torch.tensor([1.0, 2.0000002])])
    False
    """
    sums = [_words(tensor.detach()).sum(dtype=torch.int64) for tensor in tensors]
    return torch.stack(sums).tolist() if sums else []  # the only wait for a GPU


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers, of 8 bytes where possible: a sum of smaller ones would copy them to 8 bytes."""
    flat, size = tensor.reshape(-1), tensor.element_size()
    aligned = flat.nbytes % 8 == 0 and flat.storage_offset() * size % 8 == 0
    return flat.view(torch.int64 if aligned else WORDS[size])
