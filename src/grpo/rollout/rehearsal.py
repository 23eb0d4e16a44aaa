"""Kernels compiled side by side, before the first token.

On a machine that never ran them, compiling one after another would be most of the time until the first token. The
compiler works outside Python's lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from grpo.fused.kernels import gated, norm
from grpo.rollout import kernels
from grpo.rollout.rows import SMALLEST_BATCH

if TYPE_CHECKING:
    from grpo.rollout.graphs import GraphDecoding


@torch.no_grad()
def rehearse(decoding: GraphDecoding) -> None:
    """Launches every kernel once, on rows that stand for nothing: all they write is written again by a real run."""
    device = decoding.policy.device
    torch.cuda.synchronize(device)

    def on_its_own_stream(work: Callable[[], object]) -> None:
        with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            work()

    works = rehearsals(decoding)
    with ThreadPoolExecutor(len(works)) as threads:
        list(threads.map(on_its_own_stream, works))
    torch.cuda.synchronize(device)


def rehearsals(decoding: GraphDecoding) -> Sequence[Callable[[], object]]:
    room, like = decoding.room, decoding.logits_PV
    works: list[Callable[[], object]] = [
        partial(decoding.rows.close_up, room.rows),
        partial(decoding._sample, like, decoding.every_row[:1]),
    ]
    if (weights := decoding.fused) is None:
        return works
    assert decoding.rotation is not None
    layer, residual_BC = weights.layers[0], weights.body.embed_tokens.weight[:1].detach()
    zeros = partial(like.new_zeros, dtype=weights.dtype)
    for rows in {min(SMALLEST_BATCH, room.rows), room.rows}:
        works.append(partial(decoding.attend_packed, 0, zeros(rows, len(layer.qkv.weight)), layer))
    columns_Q = torch.zeros(2, dtype=torch.int32, device=like.device)
    tokens = SimpleNamespace(slot_B=columns_Q, first_B=columns_Q, time=columns_Q)
    place, qkv_QE = decoding.prompt_layers[0], zeros(2, len(layer.qkv.weight))
    return [
        *works,
        partial(kernels.rotate_and_store, qkv_QE, place, decoding.rotation, tokens, decoding.heads, layer.norms),
        partial(norm, residual_BC, layer.before.weight, layer.before.variance_epsilon, weights.dtype),
        partial(gated, zeros(1, len(layer.gate_up.weight))),
    ]
