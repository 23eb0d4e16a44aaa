"""One decoding step of a Llama model, one token per row, with a third of the stock model's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import embedding

from grpo.model.fused.kernels import gated, norm
from grpo.model.fused.weights import Layer, Weights

Attend = Callable[[int, torch.Tensor, Layer], torch.Tensor]
"""(layer number, queries, keys and values [B, E], layer) -> attention output [B, heads * D]."""


def decoded(weights: Weights, token_B: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Last hidden states [B, C], in the precision of computation. The residual has the precision of the weights."""

    def normed(residual_BC: torch.Tensor, by: Any) -> torch.Tensor:
        return norm(residual_BC, by.weight, by.variance_epsilon, weights.dtype)[0]

    residual_BC = embedding(token_B, weights.body.embed_tokens.weight)
    for index, layer in enumerate(weights.layers):
        mixed_BE = attend(index, layer.qkv(normed(residual_BC, layer.attention_norm)), layer)
        layer.out.add_to(residual_BC, mixed_BE, in_place=True)
        gate_up_BJ = layer.gate_up(normed(residual_BC, layer.mlp_norm))
        layer.down.add_to(residual_BC, gated(gate_up_BJ), in_place=True)
    return normed(residual_BC, weights.body.norm)
