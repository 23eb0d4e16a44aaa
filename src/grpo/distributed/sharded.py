"""Gradients summed over the ranks, and AdamW's state divided among them.

Gradients travel in float32, a bucket at a time: to all ranks (`Replicas`) or to the owner of each interval (`Shards`),
whose updated values then travel back in the weights' own format.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from operator import or_
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from grpo.distributed.buckets import BUCKET, Bucket, Span, make_buckets
from grpo.distributed.world import World, all_gather, reduce_scatter
from grpo.kill_points import point

State = Mapping[Any, Mapping[str, torch.Tensor]]
"""AdamW's state: `step`, `exp_avg` and `exp_avg_sq` of each parameter."""


class Replicas:
    """Weights that every rank updates as a whole."""

    def __init__(self, weights: Sequence[Parameter], world: World, limit: int = BUCKET):
        self.world, self.parameters = world, list(weights)
        self.held: dict[int, torch.dtype] = {}
        self.number = {weight: number for number, weight in enumerate(weights)}
        self.buckets = make_buckets(*_formats(weights), world.size, limit)

    @torch.no_grad()
    def reduce(self) -> torch.Tensor:
        """Sums the gradients over the ranks, in place. Returns their norm."""
        if self.world.size > 1:
            self._sum_over_ranks()
        return torch.nn.utils.get_total_norm([each.grad for each in self.parameters if each.grad is not None])

    def _sum_over_ranks(self) -> None:
        buffer = _buffer(self.buckets, self.parameters)
        with self.world.exchanging(_with_gradient(self.parameters)) as found:
            present = functools.reduce(or_, found)
            for number, weight in enumerate(self.parameters):
                if present >> number & 1:
                    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
            for bucket in self.buckets:
                flat = _fill(buffer, bucket, self.parameters)
                dist.all_reduce(flat, group=self.world.tensors)
                _spread([weight.grad for weight in self.parameters], bucket, flat)
            point("gradients.reduced")

    def publish(self) -> None:
        # Fused updates do not increment the weights' versions; working copies (`model.fused.weights`) read them.
        increment_version(self.parameters)

    def masters(self) -> Iterator[tuple[int, torch.Tensor]]:
        return iter(())

    def gather(self, state: State) -> Iterator[tuple[int, str, torch.Tensor]]:
        """AdamW's state by weight and kind."""
        for number, weight in enumerate(self.parameters):
            for kind, tensor in state.get(weight, {}).items():
                yield number, kind, tensor

    def scatter(self, values: Mapping[int, torch.Tensor], numbers: Sequence[int]) -> dict[Parameter, torch.Tensor]:
        """Rank 0's values for the weights of these numbers, by parameter."""
        weights = [self.parameters[number] for number in numbers]
        found = [
            values[number].to(weight.device, weight.dtype)
            if self.world.first
            else torch.empty_like(weight, requires_grad=False)
            for number, weight in zip(numbers, weights, strict=True)
        ]
        self.world.broadcast(found)
        return dict(zip(weights, found, strict=True))


class Shards:
    """Weights of which every rank updates its interval of each bucket, and receives the others.

    `held`: the format of weights that stay in 16 bits in the model; each rank has the float32 values of its intervals.
    """

    def __init__(
        self, weights: Sequence[Parameter], world: World, held: Mapping[int, torch.dtype], limit: int = BUCKET
    ):
        self.world, self.weights, self.held = world, list(weights), dict(held)
        sizes, self.dtypes = _formats(weights)
        in_model = [held.get(number, dtype) for number, dtype in enumerate(self.dtypes)]
        self.buckets = make_buckets(sizes, in_model, world.size, limit)
        self.owned = [bucket.owned(world.rank) for bucket in self.buckets]
        self.pieces = [[Parameter(self._values(span)) for span in spans] for spans in self.owned]
        self.parameters = [piece for pieces in self.pieces for piece in pieces]
        self.number = {piece: span.weight for span, piece in self._owned_pieces()}
        for number, dtype in held.items():
            weights[number].data = weights[number].data.to(dtype)
            weights[number].grad_dtype = torch.float32

    def _owned_pieces(self) -> Iterator[tuple[Span, Parameter]]:
        for spans, pieces in zip(self.owned, self.pieces, strict=True):
            yield from zip(spans, pieces, strict=True)

    def _values(self, span: Span) -> torch.Tensor:
        values = span.of(self.weights[span.weight].detach())
        return values.clone() if span.weight in self.held else values

    def _find_pieces(self) -> None:
        """Pieces that are parts of weights are found again: a working copy may have moved the weights."""
        for span, piece in self._owned_pieces():
            if span.weight not in self.held:
                piece.data = self._values(span)

    @torch.no_grad()
    def reduce(self) -> torch.Tensor:
        """Sums the gradients over the ranks, each interval for its owner, and frees them. Returns the norm of all."""
        self._find_pieces()
        buffer = _buffer(self.buckets, self.weights)
        squares = buffer.new_zeros((), dtype=torch.float64)
        with self.world.exchanging(_with_gradient(self.weights)) as found:
            present = functools.reduce(or_, found)
            for bucket, spans, pieces in zip(self.buckets, self.owned, self.pieces, strict=True):
                flat = _fill(buffer, bucket, self.weights)
                for span in bucket.spans:
                    if span.start + span.size == self.weights[span.weight].numel():
                        self.weights[span.weight].grad = None
                mine = buffer.new_empty(bucket.interval)
                reduce_scatter(mine, flat, self.world.tensors)
                squares += torch.linalg.vector_norm(mine, dtype=torch.float64).square()  # in float32 long sums drift
                for span, piece in zip(spans, pieces, strict=True):
                    piece.grad = span.within(mine).to(piece.dtype) if present >> span.weight & 1 else None
            dist.all_reduce(squares, group=self.world.tensors)
            point("gradients.reduced")
        return squares.sqrt().to(buffer.dtype)

    @torch.no_grad()
    def publish(self) -> None:
        """Sends the pieces to all ranks, into the weights."""
        weights = [weight.detach() for weight in self.weights]
        formats = [bucket.dtype for bucket in self.buckets]
        values = dict(zip(self.parameters, self.parameters, strict=True))
        for bucket, flat in self._all_gather(values, formats):
            _spread(weights, bucket, flat)
        point("weights.published")

    def masters(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The float32 values of weights that the model holds in 16 bits, one by one; on rank 0 only."""
        return self._collect({piece: piece.detach() for piece in self.parameters}, self.held)

    def gather(self, state: State) -> Iterator[tuple[int, str, torch.Tensor]]:
        """AdamW's state by weight and kind, tensor by tensor; on rank 0 only."""
        updated = [piece for piece in self.parameters if state.get(piece)]
        steps = functools.reduce(or_, self.world.meet({self.number[p]: float(state[p]["step"]) for p in updated}))
        for number in sorted(steps) if self.world.first else ():
            yield number, "step", torch.tensor(steps[number])
        for kind in ("exp_avg", "exp_avg_sq"):
            for number, moment in self._collect({piece: state[piece][kind] for piece in updated}, steps):
                yield number, kind, moment

    @torch.no_grad()
    def scatter(self, values: Mapping[int, torch.Tensor], numbers: Container[int]) -> dict[Parameter, torch.Tensor]:
        """Rank 0's values for the weights of these numbers, by parameter."""
        self._find_pieces()
        buffer, found = _buffer(self.buckets, self.weights), {}
        with self.world.exchanging():
            for bucket, spans, pieces in zip(self.buckets, self.owned, self.pieces, strict=True):
                flat = buffer[: bucket.size]
                for span in bucket.spans if self.world.first else ():
                    if span.weight in numbers:
                        span.within(flat).copy_(span.of(values[span.weight]))
                dist.broadcast(flat, group=self.world.tensors, group_src=0)
                mine = flat[self.world.rank * bucket.interval :]
                for span, piece in zip(spans, pieces, strict=True):
                    if span.weight in numbers:
                        found[piece] = span.within(mine).to(piece.dtype, copy=True)
        return found

    def _collect(
        self, values: Mapping[Parameter, torch.Tensor], numbers: Container[int]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Values of the weights of these numbers, each as one tensor in main memory; on rank 0 only.

        All ranks must read it to its end.
        """
        wanted = [any(span.weight in numbers for span in bucket.spans) for bucket in self.buckets]
        dtypes = [self.dtypes[bucket.spans[0].weight] for bucket in self.buckets]
        begun: dict[int, torch.Tensor] = {}
        formats = [dtype if one else None for dtype, one in zip(dtypes, wanted, strict=True)]
        for bucket, flat in self._all_gather(values, formats):
            for span in bucket.spans if self.world.first else ():
                if span.weight in numbers:
                    shape = self.weights[span.weight].shape
                    whole = begun.pop(span.weight) if span.start else torch.empty(shape, dtype=flat.dtype)
                    span.of(whole).copy_(span.within(flat))
                    if span.start + span.size == whole.numel():
                        yield span.weight, whole
                    else:
                        begun[span.weight] = whole

    def _all_gather(
        self, values: Mapping[Parameter, torch.Tensor], formats: Sequence[torch.dtype | None]
    ) -> Iterator[tuple[Bucket, torch.Tensor]]:
        """Every bucket that has a format, with the values of all ranks in that format; the next one overwrites them."""
        if not any(formats):
            return
        buffer = _buffer(self.buckets, self.weights).view(torch.uint8)
        with self.world.exchanging():
            for bucket, dtype, spans, pieces in zip(self.buckets, formats, self.owned, self.pieces, strict=True):
                if dtype is None:
                    continue
                flat = buffer[: bucket.size * dtype.itemsize].view(dtype)
                mine = flat.new_empty(bucket.interval)
                owned = [(span, values[piece]) for span, piece in zip(spans, pieces, strict=True) if piece in values]
                _copy([span.within(mine) for span, _ in owned], [value.detach() for _, value in owned])
                all_gather(flat, mine, self.world.tensors)
                yield bucket, flat


def _formats(weights: Sequence[Parameter]) -> tuple[list[int], list[torch.dtype]]:
    return [weight.numel() for weight in weights], [weight.dtype for weight in weights]


def _with_gradient(weights: Sequence[Parameter]) -> int:
    """The weights with a gradient on this rank, as bits."""
    return sum(1 << number for number, weight in enumerate(weights) if weight.grad is not None)


def _buffer(buckets: Sequence[Bucket], weights: Sequence[Parameter]) -> torch.Tensor:
    """Memory of the largest bucket, in float32 or wider."""
    wide = functools.reduce(torch.promote_types, (weight.dtype for weight in weights), torch.float32)
    return torch.empty(max(bucket.size for bucket in buckets), dtype=wide, device=weights[0].device)


def _fill(buffer: torch.Tensor, bucket: Bucket, weights: Sequence[Parameter]) -> torch.Tensor:
    """The bucket with this rank's gradients; 0 where it has none."""
    flat = buffer[: bucket.size].zero_()
    found = [(span, weights[span.weight].grad) for span in bucket.spans]
    present = [(span, grad) for span, grad in found if grad is not None]
    _copy([span.within(flat) for span, _ in present], [span.of(grad.contiguous()) for span, grad in present])
    return flat


def _spread(tensors: Sequence[torch.Tensor | None], bucket: Bucket, flat: torch.Tensor) -> None:
    """Copies the bucket's values into the tensors of its weights."""
    found = [(span, tensors[span.weight]) for span in bucket.spans]
    present = [(span, tensor) for span, tensor in found if tensor is not None]
    _copy([span.of(tensor) for span, tensor in present], [span.within(flat) for span, _ in present])


def _copy(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, values)
