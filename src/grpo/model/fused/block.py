"""One block of Llama's kind, and the whole body: forward, and the backward pass written out.

    x += out(attention(rotated(qkv(norm(x)))))
    x += down(silu(gate(norm(x))) * up(norm(x)))

The residual x stays in the precision of the weights. Norms, gate and rotation are computed again in the backward pass
rather than kept: they are cheap, and memory is not. A forgetful block keeps its input alone and runs forward twice.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo.model.fused import kernels
from grpo.model.fused.attention import Segments, attend, attend_backward
from grpo.model.fused.weights import Layer, Linear, Weights, add_gradient


class Body:
    """The last hidden states of a packed micro-batch."""

    def __init__(self, weights: Weights, forgetful: bool = False):
        self.weights, self.forgetful = weights, forgetful

    def hidden(self, tokens_T: torch.Tensor, positions_T: torch.Tensor, segments: Segments) -> torch.Tensor:
        """[T, C] in the precision of computation."""
        weights = self.weights
        weights.refresh()
        rotation = weights.rotation(segments.positions)
        packed = Packed(weights, positions_T, segments, rotation, self.forgetful)
        x_TC = _Embedding.apply(weights.body.embed_tokens.weight, tokens_T)
        if torch.is_grad_enabled() and not x_TC.requires_grad:
            x_TC.requires_grad_()  # a frozen table, under blocks that are not
        for layer in weights.layers:
            x_TC = _Block.apply(x_TC, layer, packed)
        return _Norm.apply(x_TC, weights.body.norm, packed)


class Packed:
    """What all blocks of one pass share."""

    def __init__(
        self,
        weights: Weights,
        positions_T: torch.Tensor,
        segments: Segments,
        rotation: tuple[torch.Tensor, torch.Tensor],
        forgetful: bool,
    ):
        self.heads, self.key_heads, self.dtype = weights.heads, weights.key_heads, weights.dtype
        self.positions_T, self.segments, self.rotation = positions_T, segments, rotation
        self.forgetful = forgetful
        self.narrow_TC = torch.empty(0)
        """In the backward pass: the gradient of the residual, rounded, as the step before has left it."""


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: torch.Tensor, layer: Layer, packed: Packed) -> torch.Tensor:
        out_TC, kept = _forward(x_TC, layer, packed)
        ctx.layer, ctx.packed = layer, packed
        ctx.save_for_backward(x_TC, *(() if packed.forgetful else kept))
        return out_TC

    @staticmethod
    def backward(ctx: Any, grad_TC: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x_TC, *kept = ctx.saved_tensors
        if not kept:
            kept = _forward(x_TC, ctx.layer, ctx.packed)[1]
        return _backward(grad_TC, x_TC, tuple(kept), ctx.layer, ctx.packed), None, None


def _forward(x_TC: torch.Tensor, layer: Layer, packed: Packed) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """(the block's output, what its backward pass needs besides the input)."""
    normal_TC, scale_T = kernels.norm(x_TC, layer.before.weight, layer.before.variance_epsilon, packed.dtype)
    qkv_TE = layer.qkv(normal_TC)
    of_heads: tuple[torch.Tensor, ...] = ()
    if layer.head_norms:
        of_heads = (qkv_TE.clone(), *_norm_heads(qkv_TE, layer, packed))
    kernels.rotate(qkv_TE, packed.rotation, packed.positions_T, packed.heads, packed.key_heads)
    mixed_THD, lse_HT = attend(qkv_TE, packed.segments, packed.heads, packed.key_heads, layer.scale)
    middle_TC = layer.out.onto(x_TC, mixed_THD.flatten(1))
    normal_TC, middle_scale_T = kernels.norm(middle_TC, layer.after.weight, layer.after.variance_epsilon, packed.dtype)
    gate_up_TJ = layer.gate_up(normal_TC)
    out_TC = layer.down.onto(middle_TC, kernels.gated(gate_up_TJ))
    return out_TC, (scale_T, qkv_TE, mixed_THD, lse_HT, middle_TC, middle_scale_T, gate_up_TJ, *of_heads)


def _backward(
    grad_TC: torch.Tensor, x_TC: torch.Tensor, kept: tuple[torch.Tensor, ...], layer: Layer, packed: Packed
) -> torch.Tensor:
    scale_T, qkv_TE, mixed_THD, lse_HT, middle_TC, middle_scale_T, gate_up_TJ, *of_heads = kept
    grad_TI = layer.down.back(packed.narrow_TC)
    grad_TJ, product_TI = kernels.gate_backward(grad_TI, gate_up_TJ)
    layer.down.learn(packed.narrow_TC, product_TI)
    _through_norm(layer.after, layer.gate_up, grad_TJ, middle_TC, middle_scale_T, grad_TC, packed)

    grad_THD = layer.out.back(packed.narrow_TC).view_as(mixed_THD)
    layer.out.learn(packed.narrow_TC, mixed_THD.flatten(1))
    own, more = attend_backward(
        grad_THD, qkv_TE, mixed_THD, lse_HT, packed.segments, packed.heads, packed.key_heads, layer.scale
    )
    grad_TE = kernels.rotate_back(own, more, packed.rotation, packed.positions_T)
    if layer.head_norms:
        _norm_heads_backward(grad_TE, layer, packed, *of_heads)
    _through_norm(layer.before, layer.qkv, grad_TE, x_TC, scale_T, grad_TC, packed)
    return grad_TC


def _through_norm(
    norm: Any,
    maps: Linear,
    grad: torch.Tensor,
    x_TC: torch.Tensor,
    scale_T: torch.Tensor,
    sum_TC: torch.Tensor,
    packed: Packed,
) -> None:
    """Back through maps(norm(x)): adds the gradient of x to the residual's, in place."""
    normal_TC, _ = kernels.norm(x_TC, norm.weight, norm.variance_epsilon, packed.dtype)
    maps.learn(grad, normal_TC)
    packed.narrow_TC, grad_C = kernels.norm_backward(maps.back(grad), x_TC, scale_T, norm.weight, sum_TC)
    add_gradient(norm.weight, grad_C)


def _norm_heads(qkv_TE: torch.Tensor, layer: Layer, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    """Qwen 3 gives queries and keys norms of their own; in place, the scales returned."""
    assert layer.norms is not None
    q_norm_D, k_norm_D, eps = layer.norms
    keys_TE = qkv_TE[:, packed.heads * len(q_norm_D) :]
    return (
        kernels.norm_heads(qkv_TE, q_norm_D, eps, packed.heads, qkv_TE),
        kernels.norm_heads(keys_TE, k_norm_D, eps, packed.key_heads, keys_TE),
    )


def _norm_heads_backward(
    grad_TE: torch.Tensor,
    layer: Layer,
    packed: Packed,
    raw_TE: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
) -> None:
    assert layer.norms is not None
    q_norm_D, k_norm_D, _ = layer.norms
    keys = packed.heads * len(q_norm_D)
    of_q = kernels.norm_heads_backward(grad_TE, raw_TE, q_scale, q_norm_D, packed.heads)
    of_k = kernels.norm_heads_backward(grad_TE[:, keys:], raw_TE[:, keys:], k_scale, k_norm_D, packed.key_heads)
    add_gradient(q_norm_D, of_q)
    add_gradient(k_norm_D, of_k)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VC: torch.Tensor, tokens_T: torch.Tensor) -> torch.Tensor:
        ctx.weight_VC = weight_VC
        ctx.save_for_backward(tokens_T)
        return torch.nn.functional.embedding(tokens_T, weight_VC)

    @staticmethod
    def backward(ctx: Any, grad_TC: torch.Tensor) -> tuple[None, None]:
        if ctx.weight_VC.requires_grad:
            if ctx.weight_VC.grad is None:
                ctx.weight_VC.grad = torch.zeros_like(ctx.weight_VC)
            add_rows(ctx.weight_VC.grad, ctx.saved_tensors[0], grad_TC)
        return None, None


def add_rows(table_VC: torch.Tensor, tokens_T: torch.Tensor, grad_TC: torch.Tensor) -> None:
    """Adds each row to its token's, in float32 at least: in bfloat16 the thousandth of a frequent token would round
    away."""
    if table_VC.dtype.itemsize < 4:
        tokens_T, place_T = tokens_T.unique(return_inverse=True)
        sums_UC = grad_TC.new_zeros(len(tokens_T), grad_TC.shape[1], dtype=torch.float32)
        grad_TC = sums_UC.index_add_(0, place_T, grad_TC.float())
    table_VC.index_add_(0, tokens_T, grad_TC.to(table_VC.dtype))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: torch.Tensor, norm: Any, packed: Packed) -> torch.Tensor:
        ctx.norm, ctx.packed = norm, packed
        normal_TC, scale_T = kernels.norm(x_TC, norm.weight, norm.variance_epsilon, packed.dtype)
        ctx.save_for_backward(x_TC, scale_T)
        return normal_TC

    @staticmethod
    def backward(ctx: Any, grad_TC: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (x_TC, scale_T), norm, packed = ctx.saved_tensors, ctx.norm, ctx.packed
        sum_TC = torch.zeros_like(x_TC)
        packed.narrow_TC, grad_C = kernels.norm_backward(grad_TC.contiguous(), x_TC, scale_T, norm.weight, sum_TC)
        add_gradient(norm.weight, grad_C)
        return sum_TC, None, None
