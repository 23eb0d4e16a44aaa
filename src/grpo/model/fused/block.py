"""One Llama block, and the body of all blocks: forward and backward.

    x += out(attention(rotated(qkv(norm(x)))))
    x += down(silu(gate(norm(x))) * up(norm(x)))

The residual x stays in the precision of the weights. Norms, gate and rotation are recomputed in the backward pass: that
costs little time and saves memory. With gradient checkpointing a block keeps only its input and runs forward twice.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo.model.fused import kernels
from grpo.model.fused.attention import Segments, attend, attend_backward
from grpo.model.fused.weights import Layer, Linear, Weights, add_gradient


class Body:
    """All blocks: last hidden states of a packed micro-batch."""

    def __init__(self, weights: Weights, gradient_checkpointing: bool = False):
        self.weights, self.gradient_checkpointing = weights, gradient_checkpointing

    def hidden(self, tokens_T: torch.Tensor, positions_T: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Last hidden states [T, C], in the precision of computation."""
        weights = self.weights
        weights.refresh()
        rotation = weights.rotation(segments.positions)
        state = PassState(weights, positions_T, segments, rotation, self.gradient_checkpointing)
        x_TC = _Embedding.apply(weights.body.embed_tokens.weight, tokens_T)
        if torch.is_grad_enabled() and not x_TC.requires_grad:
            x_TC.requires_grad_()  # the embedding is frozen, the blocks are not
        for layer in weights.layers:
            x_TC = _Block.apply(x_TC, layer, state)
        return _Norm.apply(x_TC, weights.body.norm, state)


class PassState:
    """State that all blocks of one forward and backward pass share."""

    def __init__(
        self,
        weights: Weights,
        positions_T: torch.Tensor,
        segments: Segments,
        rotation: tuple[torch.Tensor, torch.Tensor],
        gradient_checkpointing: bool,
    ):
        self.heads, self.key_heads, self.dtype = weights.heads, weights.key_heads, weights.dtype
        self.positions_T, self.segments, self.rotation = positions_T, segments, rotation
        self.gradient_checkpointing = gradient_checkpointing
        self.narrow_TC = torch.empty(0)
        """In the backward pass: the residual's gradient rounded to the precision of computation."""


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: torch.Tensor, layer: Layer, state: PassState) -> torch.Tensor:
        out_TC, kept = _forward(x_TC, layer, state)
        ctx.layer, ctx.state = layer, state
        ctx.save_for_backward(x_TC, *(() if state.gradient_checkpointing else kept))
        return out_TC

    @staticmethod
    def backward(ctx: Any, grad_TC: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x_TC, *kept = ctx.saved_tensors
        if not kept:
            kept = _forward(x_TC, ctx.layer, ctx.state)[1]
        return _backward(grad_TC, x_TC, tuple(kept), ctx.layer, ctx.state), None, None


def _forward(x_TC: torch.Tensor, layer: Layer, state: PassState) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """(the block's output, tensors its backward pass needs in addition to the input)."""
    normal_TC, scale_T = kernels.norm(
        x_TC, layer.attention_norm.weight, layer.attention_norm.variance_epsilon, state.dtype
    )
    wide_TE, bias_E = layer.qkv.unrounded(normal_TC), layer.qkv.bias
    of_heads: tuple[torch.Tensor, ...] = ()
    if layer.head_norms:
        wide_TE, bias_E = wide_TE if bias_E is None else wide_TE + bias_E, None
        of_heads = (wide_TE.to(state.dtype, copy=True), *_norm_heads(wide_TE, layer, state))
    qkv_TE = kernels.rotate(
        wide_TE, bias_E, state.rotation, state.positions_T, state.heads, state.key_heads, state.dtype
    )
    del wide_TE  # twice as large as what is kept
    mixed_THD, lse_HT = attend(qkv_TE, state.segments, state.heads, state.key_heads, layer.scale)
    middle_TC = layer.out.add_to(x_TC, mixed_THD.flatten(1))
    normal_TC, middle_scale_T = kernels.norm(
        middle_TC, layer.mlp_norm.weight, layer.mlp_norm.variance_epsilon, state.dtype
    )
    gate_up_TJ = layer.gate_up(normal_TC)
    out_TC = layer.down.add_to(middle_TC, kernels.gated(gate_up_TJ))
    return out_TC, (scale_T, qkv_TE, mixed_THD, lse_HT, middle_TC, middle_scale_T, gate_up_TJ, *of_heads)


def _backward(
    grad_TC: torch.Tensor, x_TC: torch.Tensor, kept: tuple[torch.Tensor, ...], layer: Layer, state: PassState
) -> torch.Tensor:
    scale_T, qkv_TE, mixed_THD, lse_HT, middle_TC, middle_scale_T, gate_up_TJ, *of_heads = kept
    grad_TI = layer.down.input_grad(state.narrow_TC)
    grad_TJ, gated_TI = kernels.gate_backward(grad_TI, gate_up_TJ)
    layer.down.accumulate_grad(state.narrow_TC, gated_TI)
    _through_norm(layer.mlp_norm, layer.gate_up, grad_TJ, middle_TC, middle_scale_T, grad_TC, state)

    grad_THD = layer.out.input_grad(state.narrow_TC).view_as(mixed_THD)
    layer.out.accumulate_grad(state.narrow_TC, mixed_THD.flatten(1))
    own, more = attend_backward(
        grad_THD, qkv_TE, mixed_THD, lse_HT, state.segments, state.heads, state.key_heads, layer.scale
    )
    grad_TE = kernels.rotate_back(own, more, state.rotation, state.positions_T)
    if layer.head_norms:
        _norm_heads_backward(grad_TE, layer, state, *of_heads)
    _through_norm(layer.attention_norm, layer.qkv, grad_TE, x_TC, scale_T, grad_TC, state)
    return grad_TC


def _through_norm(
    norm: Any,
    maps: Linear,
    grad: torch.Tensor,
    x_TC: torch.Tensor,
    scale_T: torch.Tensor,
    sum_TC: torch.Tensor,
    state: PassState,
) -> None:
    """Backward pass of maps(norm(x)): adds the gradient of x to `sum_TC`, the residual's, in place."""
    state.narrow_TC, normal_TC, grad_C = kernels.norm_backward(
        maps.input_grad(grad), x_TC, scale_T, norm.weight, sum_TC
    )
    maps.accumulate_grad(grad, normal_TC)
    add_gradient(norm.weight, grad_C)


def _norm_heads(qkv_TE: torch.Tensor, layer: Layer, state: PassState) -> tuple[torch.Tensor, torch.Tensor]:
    """Qwen 3's norms of queries and keys, in place. Returns their scales."""
    assert layer.norms is not None
    q_norm_D, k_norm_D, eps = layer.norms
    keys_TE = qkv_TE[:, state.heads * len(q_norm_D) :]
    return (
        kernels.norm_heads(qkv_TE, q_norm_D, eps, state.heads, qkv_TE),
        kernels.norm_heads(keys_TE, k_norm_D, eps, state.key_heads, keys_TE),
    )


def _norm_heads_backward(
    grad_TE: torch.Tensor,
    layer: Layer,
    state: PassState,
    raw_TE: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
) -> None:
    assert layer.norms is not None
    q_norm_D, k_norm_D, _ = layer.norms
    keys = state.heads * len(q_norm_D)
    of_q = kernels.norm_heads_backward(grad_TE, raw_TE, q_scale, q_norm_D, state.heads)
    of_k = kernels.norm_heads_backward(grad_TE[:, keys:], raw_TE[:, keys:], k_scale, k_norm_D, state.key_heads)
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
    """Adds each token's gradient to its row, summed in float32 or wider: bfloat16 loses additions to a large sum."""
    if table_VC.dtype.itemsize < 4:
        tokens_T, place_T = tokens_T.unique(return_inverse=True)
        sums_UC = grad_TC.new_zeros(len(tokens_T), grad_TC.shape[1], dtype=torch.float32)
        grad_TC = sums_UC.index_add_(0, place_T, grad_TC.float())
    table_VC.index_add_(0, tokens_T, grad_TC.to(table_VC.dtype))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: torch.Tensor, norm: Any, state: PassState) -> torch.Tensor:
        ctx.norm, ctx.state = norm, state
        normal_TC, scale_T = kernels.norm(x_TC, norm.weight, norm.variance_epsilon, state.dtype)
        ctx.save_for_backward(x_TC, scale_T)
        return normal_TC

    @staticmethod
    def backward(ctx: Any, grad_TC: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (x_TC, scale_T), norm, state = ctx.saved_tensors, ctx.norm, ctx.state
        sum_TC = torch.zeros_like(x_TC)
        state.narrow_TC, _, grad_C = kernels.norm_backward(grad_TC.contiguous(), x_TC, scale_T, norm.weight, sum_TC)
        add_gradient(norm.weight, grad_C)
        return sum_TC, None, None
