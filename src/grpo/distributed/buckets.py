"""Weights in flat buckets, and each rank's interval of every bucket.

All weights of one number format, one after the other, are one long vector. It is cut into buckets, and each rank owns
an equal interval of every bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BUCKET = 2**26
"""Elements of a bucket: 256 MiB in float32."""
ALIGNMENT = 8
"""Intervals are multiples of it, in elements: 16 bytes at 2 bytes each."""


@dataclass(frozen=True)
class Span:
    """Consecutive elements of one weight, and their place in a bucket or an interval."""

    weight: int
    start: int
    """First element in the weight."""
    offset: int
    """First element in the bucket or interval."""
    size: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(-1)[self.start : self.start + self.size]

    def within(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.offset : self.offset + self.size]


@dataclass(frozen=True)
class Bucket:
    spans: tuple[Span, ...]
    interval: int
    """Elements that each rank owns; the last ones may be padding."""
    ranks: int
    dtype: torch.dtype
    """Of its weights."""

    @property
    def size(self) -> int:
        return self.ranks * self.interval

    def owned(self, rank: int) -> list[Span]:
        """The rank's part of each weight, with its place in the rank's interval."""
        begin = rank * self.interval
        cut = (
            (span, max(span.offset, begin), min(span.offset + span.size, begin + self.interval)) for span in self.spans
        )
        return [
            Span(span.weight, span.start + first - span.offset, first - begin, last - first)
            for span, first, last in cut
            if first < last
        ]


def make_buckets(sizes: Sequence[int], dtypes: Sequence[torch.dtype], ranks: int, limit: int = BUCKET) -> list[Bucket]:
    """Buckets of at most `limit` elements, before padding; large weights are cut."""
    buckets: list[Bucket] = []
    for dtype in dict.fromkeys(dtypes):
        spans: list[Span] = []
        filled = 0
        for weight in (weight for weight, own in enumerate(dtypes) if own == dtype):
            start = 0
            while start < sizes[weight]:
                taken = min(sizes[weight] - start, limit - filled)
                spans.append(Span(weight, start, filled, taken))
                start, filled = start + taken, filled + taken
                if filled == limit:
                    buckets.append(_bucket(spans, filled, ranks, dtype))
                    spans, filled = [], 0
        if spans:
            buckets.append(_bucket(spans, filled, ranks, dtype))
    return buckets


def _bucket(spans: Sequence[Span], filled: int, ranks: int, dtype: torch.dtype) -> Bucket:
    share = -(-filled // ranks)
    return Bucket(tuple(spans), -(-share // ALIGNMENT) * ALIGNMENT, ranks, dtype)


def reduced_bytes(buckets: Sequence[Bucket]) -> int:
    """Size of all gradients as they are summed over the ranks at every update."""
    return sum(bucket.size for bucket in buckets) * torch.float32.itemsize


def gathered_bytes(buckets: Sequence[Bucket]) -> int:
    """Size of all weights as sharded updates publish them."""
    return sum(bucket.size * bucket.dtype.itemsize for bucket in buckets)
