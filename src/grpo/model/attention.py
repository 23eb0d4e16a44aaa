"""The attention function of all models that run packed rows: packed groups in training, cached decoding in rollout.

It is registered with transformers under the name "grpo". The stock model computes queries, keys and values, and passes
them on with a layout, which defines who attends to whom. Axis letters in addition to types.py: Q tokens of the longest
prompt, H heads, D head width, S keys (prompt and own).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from grpo.model.fused.segments import Segments

NAME = "grpo"


class Layout(Protocol):
    """Who attends to whom, and where keys and values are stored."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor: ...


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    layout: Layout,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention contract: heads-first [1, H, T, D] in, [1, T, H, D] out; the mask is the layout's."""
    if attention_mask is not None or unused.get("s_aux") is not None:
        raise ValueError("attention with a mask or sinks of its own")  # such models run padded: `packed_check.py`
    # Under autocast, rotation leaves queries and keys in float32 and values in 16 bits.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return layout.attend(module.layer_idx, query, key, value, scaling, sliding_window), None


# No mask function is registered under this name, so transformers builds no mask.
AttentionInterface.register(NAME, attend)


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """[prompt 1]…[prompt P][c1]…[cN] in one row. A prompt attends to itself, a completion to its prompt and itself.

    Linear layers run on the packed row, without padding. Only attention lays tokens out as grids of prompts [P, Q] and
    completions [N, E], so that one fused call serves all groups.
    """

    prompt_places_PQ: torch.Tensor
    """Index into T of each prompt token; 0 beyond the prompt's end."""
    prompt_lengths_P: torch.Tensor
    places_NE: torch.Tensor
    """Index into T of each token of a completion's sequence; 0, which is a prompt's token, beyond its end."""
    prompt_of_N: torch.Tensor
    restore_T: torch.Tensor
    """Index of each packed token's output in the two grids, flattened and concatenated."""
    cache: PromptStore | None = None
    """Stores the prompts' keys and values of every layer, in prefill."""
    segments: Segments | None = None
    """The same as sequences of unequal length, for flash attention."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        heads, width = query.shape[1], query.shape[3]
        q_TC, k_TC, v_TC = (x[0].transpose(0, 1).flatten(1) for x in (query, key, value))

        q_PHQD = _grid(q_TC, self.prompt_places_PQ, width)
        k_PHQD, v_PHQD = (_grid(x, self.prompt_places_PQ, width) for x in (k_TC, v_TC))
        if self.cache is not None:
            self.cache.store(layer, k_PHQD, v_PHQD, self.prompt_lengths_P)
        mask = None if window is None else self._prompt_mask(window)
        out_PHQD = F.scaled_dot_product_attention(
            q_PHQD,
            _per_head(k_PHQD, heads),
            _per_head(v_PHQD, heads),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
        )
        outputs = [out_PHQD.transpose(1, 2).reshape(-1, heads * width)]

        if self.places_NE.numel():
            q_NHED = _grid(q_TC, self.places_NE, width)
            k_NHSD, v_NHSD = (
                torch.cat([prompt_PHQD[self.prompt_of_N], _grid(own_TC, self.places_NE, width)], dim=2)
                for prompt_PHQD, own_TC in ((k_PHQD, k_TC), (v_PHQD, v_TC))
            )
            out_NHED = F.scaled_dot_product_attention(
                q_NHED,
                _per_head(k_NHSD, heads),
                _per_head(v_NHSD, heads),
                attn_mask=self._completion_mask(window),
                scale=scaling,
            )
            outputs.append(out_NHED.transpose(1, 2).reshape(-1, heads * width))
        return F.embedding(self.restore_T, torch.cat(outputs)).view(1, -1, heads, width)

    def _prompt_mask(self, window: int) -> torch.Tensor:
        place_Q = torch.arange(self.prompt_places_PQ.shape[1], device=self.prompt_places_PQ.device)
        distance_QQ = place_Q[:, None] - place_Q[None, :]
        return (distance_QQ >= 0) & (distance_QQ < window)

    def _completion_mask(self, window: int | None) -> torch.Tensor:
        """bool [N, 1, E, S]; made once per layout for all layers."""
        if window not in self.masks:
            (N, E), Q = self.places_NE.shape, self.prompt_places_PQ.shape[1]
            prompt_length_N11 = self.prompt_lengths_P[self.prompt_of_N][:, None, None]
            place_Q, place_E = (torch.arange(n, device=self.places_NE.device) for n in (Q, E))
            # A completion's positions start at its prompt's length, regardless of the grid's column.
            key_position_N1S = torch.cat([place_Q.expand(N, 1, Q), prompt_length_N11 + place_E], dim=2)
            query_position_NE1 = prompt_length_N11 + place_E[:, None]
            in_prompt_N1Q = place_Q < prompt_length_N11
            exists_N1S = torch.cat([in_prompt_N1Q, torch.ones_like(in_prompt_N1Q[:, :, :1]).expand(N, 1, E)], dim=2)
            distance_NES = query_position_NE1 - key_position_N1S
            mask_NES = exists_N1S & (distance_NES >= 0)
            if window is not None:
                mask_NES &= distance_NES < window
            self.masks[window] = mask_NES[:, None]
        return self.masks[window]


class PromptStore(Protocol):
    """Stores the keys and values that prefill computes for each prompt."""

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None: ...


def _grid(x_TC: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
    """Packed tokens laid out as [rows, heads, columns, width]; by `embedding`, whose backward pass is fast."""
    return F.embedding(places, x_TC).unflatten(-1, (-1, width)).transpose(1, 2)


def _per_head(x_NHSD: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values repeated for the query heads that share them."""
    shared = heads // x_NHSD.shape[1]
    return x_NHSD if shared == 1 else x_NHSD.repeat_interleave(shared, dim=1)
