"""Compiles the kernels in parallel, before the first token.

On a machine that never ran them, compiling one after another would take most of the time to the first token. The
compiler releases Python's lock, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch

from grpo.model.fused.kernels import gated, norm
from grpo.model.fused.weights import Weights
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.batch import SMALLEST_BATCH
from grpo.rollout.cuda.prefill import TokenPositions

if TYPE_CHECKING:
    from grpo.rollout.cuda.graphs import GraphDecoding

Launch = Callable[[], object]


def compile_kernels(decoding: GraphDecoding) -> None:
    """Launches every kernel of a decoding step once. A run overwrites all that they write."""
    device, launches = decoding.policy.device, kernel_launches(decoding)

    def run(launch: Launch) -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            launch()

    torch.cuda.synchronize(device)
    with ThreadPoolExecutor(len(launches)) as threads:
        list(threads.map(run, launches))
    torch.cuda.synchronize(device)


@torch.no_grad()
def kernel_launches(decoding: GraphDecoding) -> Sequence[Launch]:
    batch, sampler, vocabulary = decoding.batch, decoding.sampler, decoding.policy.model.config.vocab_size
    logits_PV = torch.zeros(1, vocabulary, dtype=torch.float32, device=decoding.policy.device)
    inverse_temperature, one_row = sampler.inverse_temperature, batch.index_B[:1]
    launches: list[Launch] = [
        partial(batch.compact, decoding.capacity.rows),
        partial(kernels.weigh, logits_PV, one_row, inverse_temperature, sampler.scratch),
        partial(kernels.pick, logits_PV, one_row, batch, sampler.results, inverse_temperature, sampler.scratch),
    ]
    return launches if decoding.fused is None else [*launches, *_of_a_layer(decoding, decoding.fused)]


def _of_a_layer(decoding: GraphDecoding, weights: Weights) -> Sequence[Launch]:
    assert decoding.rotation is not None
    layer, batch, rotation, cache = weights.layers[0], decoding.batch, decoding.rotation, decoding.cache
    cached, tables, heads = cache.layers[0], cache.tables, cache.heads
    residual_BC = weights.body.embed_tokens.weight[:1].detach()
    zeros = partial(torch.zeros, dtype=weights.dtype, device=residual_BC.device)
    sizes = SMALLEST_BATCH, decoding.capacity.rows
    few_BE, all_BE = (zeros(min(sizes[1], count), len(layer.qkv.weight)) for count in sizes)
    ones_B = torch.ones(2, dtype=torch.int32, device=residual_BC.device)
    prompt_tokens = TokenPositions(owner_B=ones_B * 0, first_B=ones_B * 0, time_B=ones_B)
    store = partial(kernels.rotate_and_store, rotation=rotation, heads=heads, norms=layer.norms)
    launches: list[Launch] = [
        partial(norm, residual_BC, layer.attention_norm.weight, layer.attention_norm.variance_epsilon, weights.dtype),
        partial(gated, zeros(1, len(layer.gate_up.weight))),
        partial(store, few_BE[:2], cached, tables.prefill_PT, positions=prompt_tokens),
    ]
    if kernels.fits_one_program(len(few_BE), tables, cached):
        settings = rotation, batch, cache.partial, heads, layer.scale, layer.window, layer.norms
        launches.append(partial(kernels.whole_attention, few_BE, cached, tables, *settings, cache.splits(len(few_BE))))
    if not kernels.fits_one_program(len(all_BE), tables, cached):
        shared = cached, tables, batch, cache.partial, heads, layer.scale, layer.window
        launches += [
            partial(store, all_BE, cached, tables.own_NT, positions=batch),
            partial(kernels.attend_to_prompts, all_BE, *shared),
            partial(kernels.attend_to_own, all_BE, *shared, cache.splits(len(all_BE))),
        ]
    return launches
