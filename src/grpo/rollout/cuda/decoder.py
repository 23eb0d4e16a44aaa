"""One decoding step of a Llama model, one token per row, with a quarter of the stock model's kernels or fewer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo.model.fused.kernels import gated
from grpo.model.fused.weights import Layer, Linear, Weights
from grpo.rollout.cuda import kernels

Attend = Callable[[int, torch.Tensor, Layer], torch.Tensor]
"""(layer number, queries, keys and values [B, E] in float32 without their bias, layer) -> attention output
[B, heads * D]."""


def decoded(weights: Weights, token_B: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Last hidden states [B, C], in the precision of computation. The residual has the precision of the weights."""
    layers, rows = weights.layers, len(token_B)
    next_norms = [*(layer.attention_norm for layer in layers[1:]), weights.body.norm]
    first = norm_of(layers[0].attention_norm, weights, depends(rows, layers[0]))
    residual_BC, x_BC = kernels.embed_and_norm(token_B, weights.body.embed_tokens.weight, first)
    for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
        dependent = depends(rows, layer)
        mixed_BE = attend(index, _project(x_BC, layer.qkv), layer)
        x_BC = _add(residual_BC, mixed_BE, layer.out, norm_of(layer.mlp_norm, weights, dependent))
        gated_BI = _project_and_gate(x_BC, layer.gate_up)
        x_BC = _add(residual_BC, gated_BI, layer.down, norm_of(next_norm, weights, dependent))
    return x_BC


def norm_of(norm: Any, weights: Weights, dependent: bool) -> kernels.Norm:
    return kernels.Norm(norm.weight, norm.variance_epsilon, weights.dtype, dependent)


def depends(rows: int, layer: Layer) -> bool:
    """Whether the kernels of a layer are dependent launches: between matmuls of cuBLAS these are slower."""
    return has_few_rows(rows, layer.qkv)


def has_few_rows(rows: int, maps: Linear, *, gate: bool = False) -> bool:
    """Whether `kernels/linear.py` multiplies, and not cuBLAS. It does not know LoRA adapters."""
    columns = len(maps.weight) // (2 if gate else 1)
    return maps.adapter is None and kernels.fits_few_rows(rows, columns, maps.weight)


def adds_in_parts(rows: int, maps: Linear, dependent: bool) -> bool:
    """Whether the parts of a sum are added by the kernel of the next norm."""
    return dependent and has_few_rows(rows, maps)


def _project(x_BC: torch.Tensor, maps: Linear) -> torch.Tensor:
    return kernels.project(x_BC, maps.weight) if has_few_rows(len(x_BC), maps) else maps.unrounded(x_BC)


def _project_and_gate(x_BC: torch.Tensor, maps: Linear) -> torch.Tensor:
    """silu(gate) · up."""
    if has_few_rows(len(x_BC), maps, gate=True):
        return kernels.project_and_gate(x_BC, maps.weight, maps.bias)
    return gated(maps(x_BC))


def _add(residual_BC: torch.Tensor, x_BI: torch.Tensor, maps: Linear, norm: kernels.Norm) -> torch.Tensor:
    """Adds the map of x to the residual, in place; returns the norm of the sum."""
    if adds_in_parts(len(x_BI), maps, norm.dependent):
        return kernels.add_and_norm(residual_BC, kernels.project_in_parts(x_BI, maps.weight, maps.bias), norm)
    maps.add_to(residual_BC, x_BI, in_place=True)
    return kernels.add_and_norm(residual_BC, None, norm)
