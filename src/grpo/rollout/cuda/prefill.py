"""Prefill on a GPU: computes each prompt once, and stores its keys and values in its blocks.

Small prefills of a repeated size are captured as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from grpo.model.fused.weights import Layer, Weights
from grpo.model.packing import pack_prompts
from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.decoder import decoded
from grpo.rollout.cuda.kernels import Rotation
from grpo.rollout.cuda.kv_cache import KvCache, PromptStore
from grpo.rollout.schedule import BLOCK_TOKENS

PREFILL_TOKENS = 32768
"""Most prompt tokens computed at a time."""
CAPTURED_PREFILL_TOKENS = 8192
"""Most tokens of a prefill that is captured: launching its kernels one by one takes longer than computing them."""
MOST_PREFILL_GRAPHS = 32
"""Most sizes that are captured."""
PREFILL_COLUMNS = 16
"""Prompt lengths are padded to a multiple of this, so that there are few sizes."""

Capture = Callable[[Callable[[], None]], torch.cuda.CUDAGraph]


@dataclass(eq=False)
class TokenPositions:
    """Where `rotate_and_store` puts each prompt token (`rotation.Positions`)."""

    owner_B: torch.Tensor
    first_B: torch.Tensor
    time_B: torch.Tensor


@dataclass(frozen=True)
class Size:
    prompts: int
    columns: int


@dataclass(frozen=True, eq=False)
class PrefillGraph:
    graph: torch.cuda.CUDAGraph
    tokens_T: torch.Tensor
    last_P: torch.Tensor


class Prefill:
    def __init__(
        self,
        policy: Policy,
        weights: Weights | None,
        cache: KvCache,
        rotation: Rotation | None,
    ):
        self.policy, self.weights = policy, weights
        self.cache, self.rotation = cache, rotation
        rows, width = len(cache.tables.prefill_PT), policy.model.get_output_embeddings().weight.shape[1]
        self.hidden_PC = torch.zeros(rows, width, dtype=policy.compute_dtype, device=policy.device)
        """Hidden state of each prompt's last token, at a fixed address for graphs."""
        self.seen: set[Size] = set()
        self.graphs: dict[Size, PrefillGraph] = {}

    def parts(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Prompts of these lengths, as many as are computed at a time."""
        first = longest = 0
        for last, length in enumerate(lengths):
            count, longest = last - first, max(longest, length)
            if count and (count == len(self.hidden_PC) or longest * (count + 1) > PREFILL_TOKENS):
                yield slice(first, last)
                first, longest = last, length
        if lengths:
            yield slice(first, len(lengths))

    def __call__(self, prompts: Sequence[np.ndarray], blocks_PT: np.ndarray, capture: Capture) -> torch.Tensor:
        """Stores one part's keys and values in these blocks; returns the hidden state of each prompt's last token."""
        self.cache.write(self.cache.tables.prefill_PT, blocks_PT)
        if self.weights is None:
            return self._stock(prompts)
        self._fused(prompts, capture)
        return self.hidden_PC[: len(prompts)].clone()

    def _stock(self, prompts: Sequence[np.ndarray]) -> torch.Tensor:
        tokens_T, positions_T, layout, last_P = pack_prompts(prompts, self.policy.device, PromptStore(self.cache))
        return self.policy.hidden(tokens_T[None], positions_T[None], layout)[0][last_P]

    def _fused(self, prompts: Sequence[np.ndarray], capture: Capture) -> None:
        """Prompts as a grid [P, Q]. Padding beyond a prompt's end is computed and never read."""
        P, longest = len(prompts), max(map(len, prompts))
        columns = self.cache.tables.prefill_PT.shape[1] * BLOCK_TOKENS
        Q = min(-(-longest // PREFILL_COLUMNS) * PREFILL_COLUMNS, columns)
        grid_PQ = np.zeros((P, Q), dtype=np.int32)  # as in decoding, whose kernels read it
        for row, prompt in zip(grid_PQ, prompts, strict=True):
            row[: len(prompt)] = prompt
        ends_P = np.array([row * Q + len(prompt) - 1 for row, prompt in enumerate(prompts)], dtype=np.int32)
        # From pinned memory the copy waits for nothing: tokens of other rows may still be queued on the GPU.
        given = torch.from_numpy(np.concatenate([grid_PQ.ravel(), ends_P]))
        given = given.pin_memory().to(self.policy.device, non_blocking=True) if self.hidden_PC.is_cuda else given
        tokens_T, last_P = given.split([P * Q, P])
        size = Size(P, Q)
        if size not in self.graphs and not self._is_captured_now(size):
            return self._compute(tokens_T, last_P)
        if size not in self.graphs:
            graph = capture(partial(self._compute, tokens_T, last_P))
            self.graphs[size] = PrefillGraph(graph, tokens_T, last_P)
        captured = self.graphs[size]
        captured.tokens_T.copy_(tokens_T)
        captured.last_P.copy_(last_P)
        captured.graph.replay()

    def _is_captured_now(self, size: Size) -> bool:
        """Whether this is the second prefill of a small size. The first one compiles its kernels."""
        seen, small = size in self.seen, size.prompts * size.columns <= CAPTURED_PREFILL_TOKENS
        self.seen.add(size)
        return seen and small and len(self.graphs) < MOST_PREFILL_GRAPHS

    def _compute(self, tokens_T: torch.Tensor, last_P: torch.Tensor) -> None:
        """Prompts in a grid; `last_P`: index into T of their ends."""
        weights, device, P, H = self.weights, self.policy.device, len(last_P), self.cache.heads
        assert weights is not None
        Q, K = len(tokens_T) // P, self.cache.key_heads
        column_Q = torch.arange(Q, dtype=torch.int32, device=device)
        prompt_P = torch.arange(P, dtype=torch.int32, device=device)
        positions = TokenPositions(
            owner_B=prompt_P[:, None].repeat(1, Q).flatten(),
            first_B=torch.zeros_like(column_Q).repeat(P),
            time_B=(column_Q + 1).repeat(P),
        )

        def attend(index: int, qkv_BE: torch.Tensor, layer: Layer) -> torch.Tensor:
            assert self.rotation is not None
            cached, table = self.cache.layers[index], self.cache.tables.prefill_PT
            places = cached, table, self.rotation, positions
            qkv_BE = kernels.rotate_and_store(qkv_BE, layer.qkv.bias, *places, H, layer.norms)
            qkv_PEQD = qkv_BE.view(P, Q, H + 2 * K, -1).transpose(1, 2)
            q_PHQD, k_PKQD, v_PKQD = qkv_PEQD.split([H, K, K], dim=1)
            mask_QQ = None
            if layer.window is not None and layer.window < Q:
                distance_QQ = column_Q[:, None] - column_Q[None, :]
                mask_QQ = (distance_QQ >= 0) & (distance_QQ < layer.window)
            out_PHQD = scaled_dot_product_attention(
                q_PHQD, k_PKQD, v_PKQD, mask_QQ, is_causal=mask_QQ is None, scale=layer.scale, enable_gqa=True
            )
            return out_PHQD.transpose(1, 2).reshape(P * Q, -1)

        self.hidden_PC[:P] = decoded(weights, tokens_T, attend)[last_P.long()]
