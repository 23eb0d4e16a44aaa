"""One decoding step of a Llama model, one token per row, with a sixth of the stock model's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo.model.fused.kernels import gated
from grpo.model.fused.weights import Layer, Linear, Weights
from grpo.rollout.cuda import kernels

Attend = Callable[[int, torch.Tensor, Layer], torch.Tensor]
"""(layer number, queries, keys and values [B, E], layer) -> attention output [B, heads * D]."""


def decoded(weights: Weights, token_B: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Last hidden states [B, C], in the precision of computation. The residual has the precision of the weights."""
    layers, embedding_VC = weights.layers, weights.body.embed_tokens.weight

    def settings(norm: Any) -> kernels.Norm:
        return kernels.Norm(norm.weight, norm.variance_epsilon, weights.dtype, depends(len(token_B), layers[0]))

    next_norms = [*(layer.attention_norm for layer in layers[1:]), weights.body.norm]
    residual_BC, x_BC = kernels.embed_and_norm(token_B, embedding_VC, settings(layers[0].attention_norm))
    for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
        mixed_BE = attend(index, project(x_BC, layer.qkv), layer)
        x_BC = add(residual_BC, mixed_BE, layer.out, settings(layer.mlp_norm))
        x_BC = add(residual_BC, project_and_gate(x_BC, layer.gate_up), layer.down, settings(next_norm))
    return x_BC


def depends(rows: int, layer: Layer) -> bool:
    """Whether the kernels of a layer are dependent launches: between matmuls of cuBLAS these are slower."""
    return has_few_rows(rows, layer.qkv)


def has_few_rows(rows: int, maps: Linear, *, gate: bool = False) -> bool:
    """Whether kernels of `kernels/linear.py` multiply, and not cuBLAS. They leave out LoRA adapters."""
    columns = len(maps.weight) // (2 if gate else 1)
    return maps.adapter is None and kernels.fits_few_rows(rows, columns, maps.weight)


def project(x_BC: torch.Tensor, maps: Linear) -> torch.Tensor:
    return kernels.project(x_BC, maps.weight, maps.bias) if has_few_rows(len(x_BC), maps) else maps(x_BC)


def project_and_gate(x_BC: torch.Tensor, maps: Linear) -> torch.Tensor:
    """silu(gate) · up."""
    if has_few_rows(len(x_BC), maps, gate=True):
        return kernels.project_and_gate(x_BC, maps.weight, maps.bias)
    return gated(maps(x_BC))


def add(residual_BC: torch.Tensor, x_BI: torch.Tensor, maps: Linear, norm: kernels.Norm) -> torch.Tensor:
    """Adds the map of x to the residual, in place; returns the norm of the sum."""
    if norm.dependent and has_few_rows(len(x_BI), maps):
        return kernels.add_and_norm(residual_BC, kernels.project_in_parts(x_BI, maps.weight, maps.bias), norm)
    maps.add_to(residual_BC, x_BI, in_place=True)
    return kernels.add_and_norm(residual_BC, None, norm)
