"""Padded models: each completion is a row of its own, [prompt][completion][padding], through the stock model.

They cannot use our attention function: Gemma 2 caps its scores, Bloom adds a slope, heads of Gemma 4 differ between
layers, Mamba has no attention. `packed_check.py` finds others. The prompt is computed once per completion, and padding
is computed too; the results are the same.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo.types import Batch


def can_be_packed(model_class: Any, config: Any) -> bool:
    capped, uneven = getattr(config, "attn_logit_softcapping", None), getattr(config, "is_heterogeneous", False)
    return bool(getattr(model_class, "_supports_attention_backend", False)) and not capped and not uneven


def predicting_states(body: Any, batch: Batch) -> torch.Tensor:
    """The hidden state that predicts each sampled token, [A, C]."""
    layout = batch.layout
    lengths_N = layout.prompt_lengths_P[layout.prompt_of_N]
    places_NS, exists_NS = _rows(batch, lengths_N)
    position_S = torch.arange(places_NS.shape[1], device=places_NS.device)
    hidden_NSC = body(
        input_ids=batch.tokens_T[places_NS],
        attention_mask=exists_NS.long(),
        position_ids=position_S.expand_as(places_NS),
        use_cache=False,
    ).last_hidden_state
    row_A, _ = batch.mask_NL.nonzero(as_tuple=True)
    return hidden_NSC[row_A, batch.positions_T[batch.source_A]]


def _rows(batch: Batch, lengths_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index into T of every token of every row; and a mask, False for padding."""
    layout = batch.layout
    (_, E), Q = layout.places_NE.shape, layout.prompt_places_PQ.shape[1]
    column_S = torch.arange(Q + E, device=lengths_N.device)
    own_NS = (column_S - lengths_N[:, None]).clamp(0, E - 1)
    in_prompt_NS = column_S < lengths_N[:, None]
    prompt_NS = layout.prompt_places_PQ[layout.prompt_of_N][:, column_S.clamp(max=Q - 1)]
    end_N = lengths_N + (layout.places_NE > 0).sum(dim=1)
    places_NS = torch.where(in_prompt_NS, prompt_NS, layout.places_NE.gather(1, own_NS))
    return places_NS, column_S < end_N[:, None]
