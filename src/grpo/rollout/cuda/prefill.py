"""Prefill on a GPU: computes each prompt once, and stores its keys and values in the cache.

Small prefills of a repeated size are captured as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from grpo.model.fused.weights import Layer, Weights
from grpo.model.matmul import matmul_fp32_out
from grpo.model.packing import pack_prompts
from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.decoder import decoded
from grpo.rollout.cuda.kernels import Rotation
from grpo.rollout.cuda.kv_cache import KvCache, PromptRange
from grpo.rollout.cuda.slots import Capacity

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
    """Where `rotate_and_store` puts each prompt token: prompt number, and position in `time`."""

    slot_B: torch.Tensor
    first_B: torch.Tensor
    time: torch.Tensor


@dataclass(frozen=True)
class Size:
    prompts: int
    columns: int
    first: int
    """Number of the first prompt in the cache."""


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
        capacity: Capacity,
        cache: KvCache,
        rotation: Rotation | None,
        capture: Capture,
    ):
        self.policy, self.weights, self.capacity = policy, weights, capacity
        self.cache, self.rotation, self.capture = cache, rotation, capture
        vocabulary = len(policy.model.get_output_embeddings().weight)
        self.logits_PV = torch.zeros(capacity.prompts, vocabulary, dtype=torch.float32, device=policy.device)
        self.seen: set[Size] = set()
        self.graphs: dict[Size, PrefillGraph] = {}

    def __call__(self, prompts: Sequence[np.ndarray]) -> torch.Tensor:
        """Fills the cache; returns the logits after each prompt."""
        first = 0
        while first < len(prompts):
            last, longest = first, 0
            while last < len(prompts) and (
                last == first or max(longest, len(prompts[last])) * (last + 1 - first) <= PREFILL_TOKENS
            ):
                longest, last = max(longest, len(prompts[last])), last + 1
            compute = self._fused if self.weights else self._stock
            compute(prompts[first:last], first)
            first = last
        return self.logits_PV[: len(prompts)]

    def _stock(self, prompts: Sequence[np.ndarray], first: int) -> None:
        store = PromptRange(self.cache.prompts, first)
        tokens_T, positions_T, layout, last_P = pack_prompts(prompts, self.policy.device, store)
        hidden_TC = self.policy.hidden(tokens_T[None], positions_T[None], layout)[0]
        self.logits_PV[first : first + len(prompts)] = self.policy.logits(hidden_TC[last_P])

    def _fused(self, prompts: Sequence[np.ndarray], first: int) -> None:
        """Prompts as a grid [P, Q]. Padding beyond a prompt's end is computed and never read."""
        P, longest = len(prompts), max(map(len, prompts))
        Q = min(-(-longest // PREFILL_COLUMNS) * PREFILL_COLUMNS, self.capacity.columns)
        grid_PQ = np.zeros((P, Q), dtype=np.int64)
        for row, prompt in zip(grid_PQ, prompts, strict=True):
            row[: len(prompt)] = prompt
        ends_P = np.array([row * Q + len(prompt) - 1 for row, prompt in enumerate(prompts)])
        tokens_T, last_P = (torch.from_numpy(values).to(self.policy.device) for values in (grid_PQ.ravel(), ends_P))
        size = Size(P, Q, first)
        if size not in self.graphs and not self._is_captured_now(size):
            return self._compute(tokens_T, last_P, first)
        if size not in self.graphs:
            graph = self.capture(partial(self._compute, tokens_T, last_P, first))
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

    def _compute(self, tokens_T: torch.Tensor, last_P: torch.Tensor, first: int) -> None:
        """Prompts in a grid, the first of them number `first` in the cache; `last_P`: index into T of their ends."""
        weights, device, P, heads = self.weights, self.policy.device, len(last_P), self.cache.heads
        assert weights is not None
        Q = len(tokens_T) // P
        column_Q = torch.arange(Q, dtype=torch.int32, device=device)
        slot_P = torch.arange(first, first + P, dtype=torch.int32, device=device)
        positions = TokenPositions(
            slot_B=slot_P[:, None].repeat(1, Q).flatten(),
            first_B=torch.zeros_like(column_Q).repeat(P),
            time=column_Q.repeat(P),
        )

        def attend(index: int, qkv_BE: torch.Tensor, layer: Layer) -> torch.Tensor:
            assert self.rotation is not None
            cached = self.cache.prompts[index]
            kernels.rotate_and_store(qkv_BE, cached, self.rotation, positions, heads, layer.norms)
            q_PHQD = qkv_BE.view(P, Q, -1, cached[0].shape[3])[:, :, :heads].transpose(1, 2)
            k_PKQD, v_PKQD = (values[first : first + P, :, :Q] for values in cached)
            mask_QQ = None
            if layer.window is not None and layer.window < Q:
                distance_QQ = column_Q[:, None] - column_Q[None, :]
                mask_QQ = (distance_QQ >= 0) & (distance_QQ < layer.window)
            out_PHQD = scaled_dot_product_attention(
                q_PHQD, k_PKQD, v_PKQD, mask_QQ, is_causal=mask_QQ is None, scale=layer.scale, enable_gqa=True
            )
            return out_PHQD.transpose(1, 2).reshape(P * Q, -1)

        hidden_PC = decoded(weights, tokens_T, attend)[last_P]
        self.logits_PV[first : first + P] = matmul_fp32_out(hidden_PC, weights.head)
