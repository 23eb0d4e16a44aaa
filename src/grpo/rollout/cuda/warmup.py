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

from grpo.model.fused.kernels import gated
from grpo.model.fused.weights import Linear, Weights
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.decoder import depends, has_few_rows
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
    """Those of a layer, each for all batch sizes: sizes that need a kernel of their own compile it. cuBLAS has nothing
    to compile."""
    layer, cache, rotation = weights.layers[0], decoding.cache, decoding.rotation
    assert rotation is not None
    embedding_VC = weights.body.embed_tokens.weight.detach()
    C, zeros = embedding_VC.shape[1], partial(torch.zeros, dtype=weights.dtype, device=embedding_VC.device)

    def store_prompts() -> None:
        ones_B = torch.ones(2, dtype=torch.int32, device=embedding_VC.device)
        positions = TokenPositions(owner_B=ones_B * 0, first_B=ones_B * 0, time_B=ones_B)
        stored = zeros(2, len(layer.qkv.weight)), cache.layers[0], cache.tables.prefill_PT
        kernels.rotate_and_store(*stored, rotation, positions, cache.heads, layer.norms)

    def norm(rows: int) -> kernels.Norm:
        of = layer.mlp_norm
        return kernels.Norm(of.weight, of.variance_epsilon, weights.dtype, depends(rows, layer))

    def embed(rows: int) -> None:
        kernels.embed_and_norm(decoding.batch.token_B[:rows], embedding_VC, norm(rows))

    def project(rows: int) -> None:
        if has_few_rows(rows, layer.qkv):
            kernels.project(zeros(rows, C), layer.qkv.weight, layer.qkv.bias)

    def attend(rows: int) -> None:
        decoding.attention.fused(0, zeros(rows, len(layer.qkv.weight)), layer)

    def gate(rows: int) -> None:
        maps = layer.gate_up
        if has_few_rows(rows, maps, gate=True):
            kernels.project_and_gate(zeros(rows, C), maps.weight, maps.bias)
        else:
            gated(zeros(rows, len(maps.weight)))

    def add(maps: Linear, rows: int) -> None:
        parts_SBC = None
        if has_few_rows(rows, maps):
            parts_SBC = kernels.project_in_parts(zeros(rows, maps.weight.shape[1]), maps.weight, maps.bias)
        kernels.add_and_norm(embedding_VC.new_zeros(rows, C), parts_SBC, norm(rows))

    sizes = sorted({decoding.capacity.batch_size(rows) for rows in range(1, decoding.capacity.rows + 1)})
    by_rows = embed, project, attend, gate, partial(add, layer.out), partial(add, layer.down)
    return [store_prompts, *(partial(_for_each, sizes, launch) for launch in by_rows)]


def _for_each(sizes: Sequence[int], launch: Callable[[int], None]) -> None:
    for rows in sizes:
        launch(rows)
