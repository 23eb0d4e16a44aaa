"""Decoding on a GPU: one CUDA graph per batch size, replayed token after token, while the host looks on from behind.

Everything a step touches has a fixed place in memory, so a step is captured once and replayed. Completions that finish
leave through compaction: the going rows move to the front, keys and values stay where they are, and a smaller graph
takes over. The host learns how many rows are still going a few tokens late; since the number only falls, a late number
is a safe one, and the GPU never waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from grpo.batch import pack_prompts
from grpo.fused.weights import Layer, weight_places
from grpo.policy import Policy
from grpo.product import wide_product
from grpo.rollout import kernels
from grpo.rollout.decoder import decoded

PREFILL_TOKENS = 32768
"""Most prompt tokens computed at a time."""
TOKENS_BETWEEN_LOOKS = 4
SMALLEST_BATCH = 8


@dataclass(frozen=True)
class Room:
    """What a decoding state has place for."""

    rows: int
    prompts: int
    columns: int
    """Longest prompt."""
    new_tokens: int
    group_size: int

    def holds(self, other: Room) -> bool:
        return self.new_tokens == other.new_tokens and all(
            getattr(self, name) >= getattr(other, name) for name in ("rows", "prompts", "columns", "group_size")
        )

    def joined(self, other: Room) -> Room:
        most = {
            name: max(getattr(self, name), getattr(other, name))
            for name in ("rows", "prompts", "columns", "group_size")
        }
        return Room(**most, new_tokens=other.new_tokens)


@dataclass(eq=False)
class Rows:
    """The completions in flight, one row each; the rows of a prompt stand side by side."""

    slot_B: torch.Tensor
    first_B: torch.Tensor
    """Position of the row's first own token: its prompt's length."""
    prompt_B: torch.Tensor
    token_B: torch.Tensor
    going_B: torch.Tensor
    start_P: torch.Tensor
    """First row of each prompt, and one past the last."""
    length_P: torch.Tensor
    time: torch.Tensor
    """How many own tokens every row has: they all started together."""
    group_size: int


@dataclass(eq=False)
class Results:
    """What sampling leaves behind, by slot."""

    noise_SL: torch.Tensor
    tokens_SL: torch.Tensor
    logp_SL: torch.Tensor
    length_S: torch.Tensor
    ends: torch.Tensor


class GraphDecoding:
    """Keys, values and captured graphs for one policy and temperature, kept from one call to the next."""

    def __init__(self, policy: Policy, room: Room, temperature: float):
        self.policy, self.room, self.temperature = policy, room, temperature
        config, device = policy.model.config, policy.device
        self.heads = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or self.heads
        width = getattr(config, "head_dim", None) or config.hidden_size // self.heads

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.float32, device=device)

        S, P, L = room.rows, room.prompts, room.new_tokens
        self.rows = Rows(
            slot_B=integers(S),
            first_B=integers(S),
            prompt_B=integers(S),
            token_B=integers(S),
            going_B=integers(S),
            start_P=integers(P + 1),
            length_P=integers(P),
            time=integers(1),
            group_size=room.group_size,
        )
        self.ends = torch.tensor(sorted(policy.end_tokens), dtype=torch.int32, device=device)
        self.results = Results(floats(S, L), integers(S, L), floats(S, L), integers(S), self.ends)

        def keys_and_values(*shape: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            empty = partial(torch.empty, *shape, dtype=policy.compute_dtype, device=device)
            return [(empty(), empty()) for _ in range(config.num_hidden_layers)]

        self.own_layers = keys_and_values(S, key_heads, L, width)
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
        self.places = weight_places(policy.model)  # which the working copy may have moved
        self.rotation = self.fused.rotation(room.columns + L) if self.fused else None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def refresh(self) -> None:
        if self.fused:
            self.fused.refresh()

    def prefill(self, prompts: Sequence[np.ndarray]) -> torch.Tensor:
        """Puts the prompts' keys and values in place; returns the logits after each prompt."""
        logits, first = [], 0
        while first < len(prompts):
            last, longest = first, 0
            while last < len(prompts) and (
                last == first or max(longest, len(prompts[last])) * (last + 1 - first) <= PREFILL_TOKENS
            ):
                longest, last = max(longest, len(prompts[last])), last + 1
            read = self._prefill_fused if self.fused else self._prefill_stock
            logits.append(read(prompts[first:last], first))
            first = last
        return torch.cat(logits)

    def _prefill_fused(self, prompts: Sequence[np.ndarray], first: int) -> torch.Tensor:
        """Prompts as a grid [P, Q]; what stands beyond a prompt's end is computed, and seen by nobody."""
        assert self.fused is not None
        device, P, Q = self.policy.device, len(prompts), max(map(len, prompts))
        lengths_P = torch.tensor([len(prompt) for prompt in prompts]).to(device)
        grid_PQ = np.zeros((P, Q), dtype=np.int64)
        for row, prompt in zip(grid_PQ, prompts, strict=True):
            row[: len(prompt)] = prompt
        column_Q = torch.arange(Q, dtype=torch.int32, device=device)
        slot_P = torch.arange(first, first + P, dtype=torch.int32, device=device)
        tokens = SimpleNamespace(
            slot_B=slot_P.repeat_interleave(Q), first_B=torch.zeros_like(column_Q).repeat(P), time=column_Q.repeat(P)
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

        hidden_BC = decoded(self.fused, torch.from_numpy(grid_PQ).to(device).flatten(), attend)
        last_P = torch.arange(P, device=device) * Q + lengths_P - 1
        return wide_product(hidden_BC[last_P], self.fused.head)

    def _prefill_stock(self, prompts: Sequence[np.ndarray], first: int) -> torch.Tensor:
        into = _Prompts(self.prompt_layers, first)
        tokens_T, positions_T, layout, last_P = pack_prompts(prompts, self.policy.device, into)
        hidden_TC = self.policy.hidden(tokens_T[None], positions_T[None], layout)[0]
        return self.policy.logits(hidden_TC[last_P])

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
        self, prompt_lengths: Sequence[int], logits_PV: torch.Tensor, noise_PGL: torch.Tensor
    ) -> tuple[Any, Any, Any]:
        """Tokens, log-probabilities and lengths of all completions; `prefill` has put the prompts in place before."""
        P, G, L = noise_PGL.shape
        N = P * G
        self._begin(prompt_lengths, G, noise_PGL.reshape(N, L))
        self._sample(logits_PV, self.rows.prompt_B[:N])
        batch, look = self._batch_for(N), None
        self._fill_up(N, batch)
        for t in range(1, L):
            self._graph(batch).replay()
            if t % TOKENS_BETWEEN_LOOKS:
                continue
            # Looking at the look before this one leaves the GPU several tokens of work while the host decides.
            before, look = look, self._look(batch)
            if before is None:
                continue
            going = before.count()
            if going == 0:
                break
            if (smaller := self._batch_for(going)) < batch:
                self._compact(batch)
                batch = smaller
        results = self.results
        return (
            results.tokens_SL[:N].cpu().numpy(),
            results.logp_SL[:N].cpu().numpy(),
            results.length_S[:N].cpu().numpy(),
        )

    def _begin(self, prompt_lengths: Sequence[int], group_size: int, noise_NL: torch.Tensor) -> None:
        N, P, rows, results = len(noise_NL), len(prompt_lengths), self.rows, self.results
        rows.time.zero_()
        results.noise_SL[:N].copy_(noise_NL)
        results.length_S.fill_(self.room.new_tokens)
        lengths_P = torch.tensor(prompt_lengths, dtype=torch.int32)
        rows.length_P[:P].copy_(lengths_P)
        rows.slot_B[:N].copy_(self.every_row[:N])
        rows.prompt_B[:N].copy_(torch.arange(P, dtype=torch.int32).repeat_interleave(group_size))
        rows.first_B[:N].copy_(lengths_P.repeat_interleave(group_size))
        rows.going_B[:N] = 1
        self._find_prompts(N)

    def _fill_up(self, rows: int, batch: int) -> None:
        """A batch may be larger than the rows there are: the rest does what row 0 does, into a slot of its own."""
        if rows < batch:
            for name in ("first_B", "token_B"):
                getattr(self.rows, name)[rows:batch] = 0
            self.rows.slot_B[rows:batch] = self.every_row[rows:batch]
            self.rows.going_B[rows:batch] = 0
            self.rows.prompt_B[rows:batch] = self.room.prompts
            self._find_prompts(batch)

    def _find_prompts(self, rows: int) -> None:
        prompts = torch.arange(self.room.prompts + 1, dtype=torch.int32, device=self.policy.device)
        self.rows.start_P.copy_(torch.searchsorted(self.rows.prompt_B[:rows].contiguous(), prompts, out_int32=True))

    def _compact(self, batch: int) -> None:
        """The going rows move to the front, in their order; finished ones belong to no prompt any more."""
        rows = self.rows
        order = torch.argsort(rows.going_B[:batch], descending=True, stable=True)
        for name in ("slot_B", "first_B", "prompt_B", "token_B", "going_B"):
            values = getattr(rows, name)
            values[:batch] = values[:batch][order]
        rows.prompt_B[:batch].masked_fill_(rows.going_B[:batch] == 0, self.room.prompts)
        self._find_prompts(batch)

    def _batch_for(self, rows: int) -> int:
        """The smallest captured size with room for these: powers of two and the halves between them."""
        size = SMALLEST_BATCH
        while size < rows:
            size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
        return min(size, self.room.rows)

    def _graph(self, batch: int) -> torch.cuda.CUDAGraph:
        if batch not in self.graphs:
            self._warm_up(batch)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=next(iter(self.graphs.values())).pool() if self.graphs else None):
                self._step(batch)
            self.graphs[batch] = graph
        return self.graphs[batch]

    def _look(self, batch: int) -> Look:
        return Look(self.rows.going_B[:batch])

    def _warm_up(self, batch: int) -> None:
        """Kernels are compiled, and libraries choose theirs, on a run that changes nothing: its rows are put back."""
        rows = self.rows
        keep = [tensor.clone() for tensor in (rows.token_B, rows.going_B, rows.time, self.results.length_S)]
        kept_logp, kept_tokens = self.results.logp_SL.clone(), self.results.tokens_SL.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(batch)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, values in zip((rows.token_B, rows.going_B, rows.time, self.results.length_S), keep, strict=True):
            tensor.copy_(values)
        self.results.logp_SL.copy_(kept_logp)
        self.results.tokens_SL.copy_(kept_tokens)

    def _step(self, batch: int) -> None:
        """Reads every row's token, and samples the next."""
        if self.fused:
            hidden_BC = decoded(self.fused, self.rows.token_B[:batch], self.attend_packed)
            logits_BV = wide_product(hidden_BC, self.fused.head)
        else:
            token_B1 = self.rows.token_B[:batch].long()[:, None]
            position_B1 = (self.rows.first_B[:batch] + self.rows.time).long()[:, None]
            logits_BV = self.policy.logits(self.policy.hidden(token_B1, position_B1, self)[:, 0])
        self.rows.time.add_(1)
        self._sample(logits_BV, self.every_row[:batch])

    def _sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor) -> None:
        kernels.sample_tokens(logits_UV, source_B, self.rows, self.results, self.temperature, self.sampling_scratch)


class _Prompts:
    """Where the prompts of one prefill go among all prompts of a wave."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], first: int):
        self.layers, self.first = layers, first

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        P, _, Q, _ = k_PHQD.shape
        for place, values in zip(self.layers[layer], (k_PHQD, v_PHQD), strict=True):
            place[self.first : self.first + P, :, :Q] = values


class Look:
    """How many rows are going, asked now, read later."""

    def __init__(self, going_B: torch.Tensor):
        self.number = torch.empty(1, dtype=torch.int64, pin_memory=True)
        self.number.copy_(going_B.sum(dtype=torch.int64)[None], non_blocking=True)
        self.arrived = torch.cuda.Event()
        self.arrived.record()

    def count(self) -> int:
        self.arrived.synchronize()
        return int(self.number)
