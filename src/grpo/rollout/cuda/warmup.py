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

from grpo.model.fused.weights import Weights
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.decoder import add, depends, gate, project
from grpo.rollout.cuda.prefill import TokenPositions

if TYPE_CHECKING:
    from grpo.rollout.cuda.graphs import GraphDecoding

Launch = Callable[[], object]

BATCHES = 16, 32, 64
"""Batch sizes whose matmuls are kernels of their own (`kernels/linear.py`)."""


def compile_kernels(decoding: GraphDecoding) -> None:
    """Launches every kernel of a decoding step once. A run overwrites all that they write."""
    device, launches = decoding.policy.device, kernel_launches(decoding)

    def run(launch: Launch) -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            torch.cuda.synchronize(device)  # cuBLAS expects a thread that has used the GPU
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
    layer, batch, cache = weights.layers[0], decoding.batch, decoding.cache
    embedding_VC = weights.body.embed_tokens.weight.detach()
    zeros = partial(torch.zeros, dtype=weights.dtype, device=embedding_VC.device)
    ones_B = torch.ones(2, dtype=torch.int32, device=embedding_VC.device)
    stored = zeros(2, len(layer.qkv.weight)), cache.layers[0], cache.tables.prefill_PT, decoding.rotation
    positions = TokenPositions(owner_B=ones_B * 0, first_B=ones_B * 0, time_B=ones_B)
    launches: list[Launch] = [partial(kernels.rotate_and_store, *stored, positions, cache.heads, layer.norms)]
    for rows in {min(size, decoding.capacity.rows) for size in (*BATCHES, decoding.capacity.rows)}:
        residual_BC, x_BC = embedding_VC.new_zeros(rows, embedding_VC.shape[1]), zeros(rows, embedding_VC.shape[1])
        mixed_BE, gated_BI = (zeros(rows, maps.weight.shape[1]) for maps in (layer.out, layer.down))
        norm = kernels.Norm(layer.mlp_norm.weight, layer.mlp_norm.variance_epsilon, weights.dtype, depends(rows, layer))
        launches += [
            partial(kernels.embed_and_norm, batch.token_B[:rows], embedding_VC, norm),
            partial(project, x_BC, layer.qkv),
            partial(decoding.attention.fused, 0, zeros(rows, len(layer.qkv.weight)), layer),
            partial(add, residual_BC, mixed_BE, layer.out, norm),
            partial(gate, x_BC, layer.gate_up),
            partial(add, residual_BC, gated_BI, layer.down, norm),
        ]
    return launches
