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

from grpo.model.fused.kernels import gated, norm
from grpo.model.fused.weights import Weights
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.slots import SMALLEST_BATCH

if TYPE_CHECKING:
    from grpo.rollout.cuda.graphs import GraphDecoding

Work = Callable[[], object]
"""One kernel's launch."""


def rehearse(decoding: GraphDecoding) -> None:
    """Launches the kernels of sampling, and of a layer of Llama's kind, once, on rows that stand for nothing: all they
    write is written again by a real run."""
    device, works = decoding.policy.device, rehearsals(decoding)

    def launch(work: Work) -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            work()

    torch.cuda.synchronize(device)
    with ThreadPoolExecutor(len(works)) as threads:
        list(threads.map(launch, works))
    torch.cuda.synchronize(device)


@torch.no_grad()
def rehearsals(decoding: GraphDecoding) -> Sequence[Work]:
    rows, logits_PV, cool, scratch = decoding.rows, decoding.logits_PV, decoding.cool, decoding.sampling_scratch
    one_row = decoding.every_row[:1]
    works: list[Work] = [
        partial(rows.close_up, decoding.room.rows),
        partial(kernels.weigh, logits_PV, one_row, cool, scratch),
        partial(kernels.pick, logits_PV, one_row, rows, decoding.results, cool, scratch),
    ]
    return works if decoding.fused is None else [*works, *_of_a_layer(decoding, decoding.fused)]


def _of_a_layer(decoding: GraphDecoding, weights: Weights) -> Sequence[Work]:
    assert decoding.rotation is not None
    layer, rows, heads, rotation = weights.layers[0], decoding.rows, decoding.heads, decoding.rotation
    own, prompts, scratch = decoding.own_layers[0], decoding.prompt_layers[0], decoding.attention_scratch
    residual_BC = weights.body.embed_tokens.weight[:1].detach()
    zeros = partial(torch.zeros, dtype=weights.dtype, device=residual_BC.device)
    few_BE, all_BE = (zeros(count, len(layer.qkv.weight)) for count in (SMALLEST_BATCH, decoding.room.rows))
    column_Q = torch.zeros(2, dtype=torch.int32, device=residual_BC.device)
    prompt_tokens = SimpleNamespace(slot_B=column_Q, first_B=column_Q, time=column_Q)
    works: list[Work] = [
        partial(norm, residual_BC, layer.attention_norm.weight, layer.attention_norm.variance_epsilon, weights.dtype),
        partial(gated, zeros(1, len(layer.gate_up.weight))),
        partial(kernels.rotate_and_store, few_BE[:2], prompts, rotation, prompt_tokens, heads, layer.norms),
    ]
    if kernels.fits_one_program(min(SMALLEST_BATCH, len(all_BE)), prompts[0]):
        known = own, prompts, rotation, rows, heads, layer.scale, layer.window, layer.norms
        works.append(partial(kernels.whole_attention, few_BE[: len(all_BE)], *known))
    if not kernels.fits_one_program(len(all_BE), prompts[0]):
        seen = rows, scratch, heads, layer.scale, layer.window
        works += [
            partial(kernels.rotate_and_store, all_BE, own, rotation, rows, heads, layer.norms),
            partial(kernels.see_prompts, all_BE, prompts, *seen),
            partial(kernels.see_own, all_BE, own, prompts[0].shape[2], *seen),
        ]
    return works
