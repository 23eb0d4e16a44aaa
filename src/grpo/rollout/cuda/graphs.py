"""Decoding on a GPU: one CUDA graph per batch size, replayed token after token, while the host looks on from behind.

Everything a step touches has a fixed place in memory, so a step is captured once and replayed. Completions that finish
leave through compaction: the going rows move to the front, keys and values stay where they are, and a smaller graph
takes over. The host learns how many rows are still going a token late; since the number only falls, a late number
is a safe one, and the GPU never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from grpo.model.fused.weights import Layer, WeightAddresses
from grpo.model.matmul import matmul_fp32_out
from grpo.model.packing import pack_prompts
from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.decoder import decoded
from grpo.rollout.cuda.slots import Results, Room, Rows
from grpo.rollout.cuda.warmup import rehearse

PREFILL_TOKENS = 32768
"""Most prompt tokens computed at a time."""
CAPTURED_PREFILL_TOKENS = 8192
"""Prompts of fewer tokens are computed by a captured graph too, one for each size."""
MOST_PREFILL_GRAPHS = 32
"""Beyond, sizes hardly repay their capture."""
PREFILL_COLUMNS = 16
"""Sizes are multiples of this many tokens, so that there are few."""


class GraphDecoding:
    """Keys, values and captured graphs for one policy, kept from one call to the next."""

    def __init__(self, policy: Policy, room: Room):
        self.policy, self.room = policy, room
        config, device = policy.model.config, policy.device
        self.heads = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or self.heads
        width = getattr(config, "head_dim", None) or config.hidden_size // self.heads

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.float32, device=device)

        S, P, L = room.rows, room.prompts, room.new_tokens
        self.rows = Rows(room, device)
        self.going = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        """How many rows go on, as the host learns of it."""
        self.cool = floats(1)
        self.ends = torch.tensor(sorted(policy.end_tokens), dtype=torch.int32, device=device)
        self.results = Results(floats(S + 1, L), integers(S, L), floats(S, L), integers(S), self.ends)

        def keys_and_values(*shape: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            zeros = partial(torch.zeros, *shape, dtype=policy.compute_dtype, device=device)
            return [(zeros(), zeros()) for _ in range(config.num_hidden_layers)]

        self.own_layers = keys_and_values(S + 1, key_heads, L, width)  # the last slot is the finished rows'
        self.prompt_layers = keys_and_values(P, key_heads, room.columns, width)
        parts = -(-room.columns // kernels.PROMPT_KEYS_PER_PROGRAM)
        self.attention_scratch = (
            floats(parts, S, self.heads, width),
            floats(parts, S, self.heads),
            floats(parts, S, self.heads),
        )
        vocabulary_parts = -(-config.vocab_size // kernels.LOGITS_PER_PROGRAM)
        self.sampling_scratch = floats(S, vocabulary_parts), floats(S, vocabulary_parts)
        self.every_row = torch.arange(S, dtype=torch.int32, device=device)
        self.fused = policy.fused
        self.addresses = WeightAddresses(policy.model)  # which the working copy may have moved
        self.rotation = self.fused.rotation(room.columns + L) if self.fused else None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool: Any = None
        self.sizes_seen: set[tuple[int, int, int]] = set()
        """Of prefills: prompts, columns, number of the first."""
        self.prefills: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        """By size: graph, tokens, which of them are last."""
        self.logits_PV = floats(P, len(policy.model.get_output_embeddings().weight))
        self._rehearse()

    def _rehearse(self) -> None:
        rehearse(self)

    def refresh(self) -> None:
        if self.fused:
            self.fused.refresh()

    def prefill(self, prompts: Sequence[np.ndarray]) -> torch.Tensor:
        """Puts the prompts' keys and values in place; returns the logits after each prompt."""
        first = 0
        while first < len(prompts):
            last, longest = first, 0
            while last < len(prompts) and (
                last == first or max(longest, len(prompts[last])) * (last + 1 - first) <= PREFILL_TOKENS
            ):
                longest, last = max(longest, len(prompts[last])), last + 1
            read = self._prefill_fused if self.fused else self._prefill_stock
            read(prompts[first:last], first)
            first = last
        return self.logits_PV[: len(prompts)]

    def _prefill_fused(self, prompts: Sequence[np.ndarray], first: int) -> None:
        """Prompts as a grid [P, Q]; what stands beyond a prompt's end is computed, and seen by nobody."""
        P, longest = len(prompts), max(map(len, prompts))
        Q = min(-(-longest // PREFILL_COLUMNS) * PREFILL_COLUMNS, self.room.columns)
        grid_PQ = np.zeros((P, Q), dtype=np.int64)
        for row, prompt in zip(grid_PQ, prompts, strict=True):
            row[: len(prompt)] = prompt
        ends_P = np.array([row * Q + len(prompt) - 1 for row, prompt in enumerate(prompts)])
        tokens_T, last_P = (torch.from_numpy(values).to(self.policy.device) for values in (grid_PQ.ravel(), ends_P))
        size = P, Q, first
        if size not in self.prefills and not self._is_captured_now(size):
            return self._read(tokens_T, last_P, first)
        if size not in self.prefills:
            self.prefills[size] = self._capture(partial(self._read, tokens_T, last_P, first)), tokens_T, last_P
        graph, held_T, held_P = self.prefills[size]
        held_T.copy_(tokens_T)
        held_P.copy_(last_P)
        graph.replay()

    def _is_captured_now(self, size: tuple[int, int, int]) -> bool:
        """Few tokens take less time to compute than their kernels take to start one by one. The first of a size
        compiles."""
        seen, few = size in self.sizes_seen, size[0] * size[1] <= CAPTURED_PREFILL_TOKENS
        self.sizes_seen.add(size)
        return seen and few and len(self.prefills) < MOST_PREFILL_GRAPHS

    def _read(self, tokens_T: torch.Tensor, last_P: torch.Tensor, first: int) -> None:
        """Prompts that lie side by side in a grid, the first of them number `first` of all; `last_P` are their ends."""
        assert self.fused is not None
        device, P = self.policy.device, len(last_P)
        Q = len(tokens_T) // P
        column_Q = torch.arange(Q, dtype=torch.int32, device=device)
        slot_P = torch.arange(first, first + P, dtype=torch.int32, device=device)
        tokens = SimpleNamespace(
            slot_B=slot_P[:, None].repeat(1, Q).flatten(),
            first_B=torch.zeros_like(column_Q).repeat(P),
            time=column_Q.repeat(P),
        )

        def attend(index: int, qkv_BE: torch.Tensor, layer: Layer) -> torch.Tensor:
            assert self.rotation is not None
            place = self.prompt_layers[index]
            kernels.rotate_and_store(qkv_BE, place, self.rotation, tokens, self.heads, layer.norms)
            q_PHQD = qkv_BE.view(P, Q, -1, place[0].shape[3])[:, :, : self.heads].transpose(1, 2)
            k_PKQD, v_PKQD = (values[first : first + P, :, :Q] for values in place)
            mask_QQ = None
            if layer.window is not None and layer.window < Q:
                distance_QQ = column_Q[:, None] - column_Q[None, :]
                mask_QQ = (distance_QQ >= 0) & (distance_QQ < layer.window)
            out_PHQD = scaled_dot_product_attention(
                q_PHQD, k_PKQD, v_PKQD, mask_QQ, is_causal=mask_QQ is None, scale=layer.scale, enable_gqa=True
            )
            return out_PHQD.transpose(1, 2).reshape(P * Q, -1)

        self.logits_PV[first : first + P] = matmul_fp32_out(
            decoded(self.fused, tokens_T, attend)[last_P], self.fused.head
        )

    def _prefill_stock(self, prompts: Sequence[np.ndarray], first: int) -> None:
        into = _Prompts(self.prompt_layers, first)
        tokens_T, positions_T, layout, last_P = pack_prompts(prompts, self.policy.device, into)
        hidden_TC = self.policy.hidden(tokens_T[None], positions_T[None], layout)[0]
        self.logits_PV[first : first + len(prompts)] = self.policy.logits(hidden_TC[last_P])

    def attend_packed(self, index: int, qkv_BE: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Attention of the fused decoder: rotation and storing included."""
        assert self.rotation is not None
        own, prompts = self.own_layers[index], self.prompt_layers[index]
        if kernels.fits_one_program(len(qkv_BE), prompts[0]):
            return kernels.whole_attention(
                qkv_BE, own, prompts, self.rotation, self.rows, self.heads, layer.scale, layer.window, layer.norms
            )
        kernels.rotate_and_store(qkv_BE, own, self.rotation, self.rows, self.heads, layer.norms)
        return self._attention(index, qkv_BE, layer.scale, layer.window)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Attention of a stock model: its queries and keys are rotated already."""
        B, heads, _, width = query.shape
        slot_B, time_B = self.rows.slot_B[:B].long(), self.rows.time.long().expand(B)
        for place, values in zip(self.own_layers[layer], (key, value), strict=True):
            place[slot_B, :, time_B] = values[:, :, 0]
        scale = width**-0.5 if scaling is None else scaling
        return self._attention(layer, query.reshape(B, -1).contiguous(), scale, window).view(B, 1, heads, width)

    def _attention(self, layer: int, q_BE: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        own, prompts = self.own_layers[layer], self.prompt_layers[layer]
        return kernels.attention(q_BE, own, prompts, self.rows, self.attention_scratch, self.heads, scale, window)

    def run(
        self, prompt_lengths: Sequence[int], logits_PV: torch.Tensor, noise_PGL: torch.Tensor, temperature: float
    ) -> tuple[Any, Any, Any]:
        """Tokens, log-probabilities and lengths of all completions; `prefill` has put the prompts in place before."""
        P, G, L = noise_PGL.shape
        N = P * G
        self.cool.fill_(1 / temperature if temperature else 0.0)
        self.results.noise_SL[:N].copy_(noise_PGL.reshape(N, L))
        self.results.length_S.fill_(L)
        self.rows.begin(prompt_lengths, G)
        self._sample(logits_PV, self.rows.prompt_B[:N])
        batch = self.room.batch_for(N)
        self.rows.close_up(batch)
        behind = None
        for _ in range(1, L):
            self._graph(batch).replay()
            # Waiting for the token before this one leaves the GPU work to do while the host decides.
            before, behind = behind, self._moment()
            if before is None:
                continue
            before.synchronize()
            # Perhaps a later token's count already: it is smaller, and as safe for what is started from now on.
            going = int(self.going)
            if going == 0:
                break
            batch = min(batch, self.room.batch_for(going))
        results = self.results
        return (
            results.tokens_SL[:N].cpu().numpy(),
            results.logp_SL[:N].cpu().numpy(),
            results.length_S[:N].cpu().numpy(),
        )

    def _moment(self) -> torch.cuda.Event:
        now = torch.cuda.Event()
        now.record()
        return now

    def _graph(self, batch: int) -> torch.cuda.CUDAGraph:
        if batch not in self.graphs:
            self._warm_up(batch)
            self.graphs[batch] = self._capture(partial(self._step, batch))
        return self.graphs[batch]

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """All graphs share one memory for what is only needed within: none runs beside another."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        self.pool = graph.pool()
        return graph

    def _warm_up(self, batch: int) -> None:
        """Kernels are compiled, and libraries choose theirs, on a run that changes nothing: its rows are put back."""
        results = self.results
        written = [*self.rows.tensors(), results.tokens_SL, results.logp_SL, results.length_S]
        kept = [tensor.clone() for tensor in written]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(batch)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, values in zip(written, kept, strict=True):
            tensor.copy_(values)
        self.going.copy_(self.rows.count, non_blocking=True)

    def _step(self, batch: int) -> None:
        """Reads every row's token, samples the next, and closes up: a count of rows holds all that go from then on."""
        if self.fused:
            hidden_BC = decoded(self.fused, self.rows.token_B[:batch], self.attend_packed)
            logits_BV = matmul_fp32_out(hidden_BC, self.fused.head)
        else:
            token_B1 = self.rows.token_B[:batch].long()[:, None]
            position_B1 = (self.rows.first_B[:batch] + self.rows.time).long()[:, None]
            logits_BV = self.policy.logits(self.policy.hidden(token_B1, position_B1, self)[:, 0])
        self.rows.time.add_(1)
        self._sample(logits_BV, self.every_row[:batch])
        self.rows.close_up(batch)
        self.going.copy_(self.rows.count, non_blocking=True)

    def _sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor) -> None:
        kernels.sample_tokens(logits_UV, source_B, self.rows, self.results, self.cool, self.sampling_scratch)


class _Prompts:
    """Where the prompts of one prefill go among all prompts of a wave."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], first: int):
        self.layers, self.first = layers, first

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        P, _, Q, _ = k_PHQD.shape
        for place, values in zip(self.layers[layer], (k_PHQD, v_PHQD), strict=True):
            place[self.first : self.first + P, :, :Q] = values
