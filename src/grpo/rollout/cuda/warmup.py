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
from grpo.rollout.cuda.decoder import adds_in_parts, depends, has_few_rows, norm_of
from grpo.rollout.cuda.prefill import PREFILL_TOKENS, TokenPositions

if TYPE_CHECKING:
    from grpo.rollout.cuda.graphs import GraphDecoding

Launch = Callable[[], object]

SMALL_PREFILLS = 16, 32, 64
"""Tokens of prefills whose matmuls differ (`kernels/linear.py`)."""


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
    """Those of a layer, each for all batch sizes: sizes that need a kernel of their own compile it."""
    layer, cache, capacity, rotation = weights.layers[0], decoding.cache, decoding.capacity, decoding.rotation
    assert rotation is not None
    embedding_VC = weights.body.embed_tokens.weight.detach()
    C, zeros = embedding_VC.shape[1], partial(torch.zeros, dtype=weights.dtype, device=embedding_VC.device)
    norm = partial(norm_of, layer.mlp_norm, weights)

    def unrounded(rows: int) -> torch.Tensor:
        """Queries, keys and values."""
        return torch.zeros(rows, len(layer.qkv.weight), device=embedding_VC.device)

    def store_prompts() -> None:
        ones_B = torch.ones(2, dtype=torch.int32, device=embedding_VC.device)
        positions = TokenPositions(owner_B=ones_B * 0, first_B=ones_B * 0, time_B=ones_B)
        places = cache.layers[0], cache.tables.prefill_PT, rotation, positions
        kernels.rotate_and_store(unrounded(2), layer.qkv.bias, *places, cache.heads, layer.norms)

    def beside_cublas() -> None:
        """Its matmuls have nothing to compile, and the kernels beside them are the same for every number of rows."""
        kernels.embed_and_norm(decoding.batch.token_B[:1], embedding_VC, norm(False))
        gated(zeros(1, len(layer.gate_up.weight)))
        kernels.add_and_norm(embedding_VC.new_zeros(1, C), None, norm(False))

    def embed(rows: int) -> None:
        if depends(rows, layer):
            kernels.embed_and_norm(decoding.batch.token_B[:1], embedding_VC, norm(True))
            kernels.add_and_norm(embedding_VC.new_zeros(1, C), None, norm(True))

    def project(rows: int) -> None:
        if has_few_rows(rows, layer.qkv):
            kernels.project(zeros(rows, C), layer.qkv.weight)

    def gate(rows: int) -> None:
        if has_few_rows(rows, layer.gate_up, gate=True):
            kernels.project_and_gate(zeros(rows, C), layer.gate_up.weight, layer.gate_up.bias)

    def add(maps: Linear, rows: int) -> None:
        if adds_in_parts(rows, maps, depends(rows, layer)):
            parts_SBC = kernels.project_in_parts(zeros(rows, maps.weight.shape[1]), maps.weight, maps.bias)
            kernels.add_and_norm(embedding_VC.new_zeros(rows, C), parts_SBC, norm(True))

    def attend(rows: int) -> None:
        decoding.attention.fused(0, unrounded(rows), layer)

    sizes = capacity.batch_sizes
    prefills = [*SMALL_PREFILLS, min(capacity.prompts * capacity.prompt_tokens, PREFILL_TOKENS)]
    by_rows = embed, project, gate, partial(add, layer.out), partial(add, layer.down)
    launches = [partial(_for_each, [*sizes, *prefills], launch) for launch in by_rows]
    return [store_prompts, beside_cublas, partial(_for_each, sizes, attend), *launches]


def _for_each(sizes: Sequence[int], launch: Callable[[int], None]) -> None:
    for rows in sizes:
        launch(rows)
