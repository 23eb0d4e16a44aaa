"""The stock model's own weights, decoded with a third of its kernels: for models built of Llama's blocks.

Query, key and value weights are laid out side by side in memory, gate and up weights likewise, and the stock model's
parameters become views of them: one product serves where it runs three or two, and training and rollout still share
the very same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grpo.policy import Policy
from grpo.rollout import kernels

BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute exactly what `Decoder` computes."""


def can_decode(policy: Policy) -> bool:
    layers = getattr(policy.model.base_model, "layers", None)
    if not layers or {type(layer).__name__ for layer in layers} - BLOCKS:
        return False
    return getattr(policy.model.config, "hidden_act", None) == "silu"


class Decoder:
    def __init__(self, policy: Policy):
        self.policy = policy
        body = policy.model.base_model
        self.body = body
        self.layers = [_Layer(layer) for layer in body.layers]

    def rotation(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of every position, [positions, D / 2], by the stock model's own rule and rounding."""
        like = self.body.embed_tokens.weight[:1]
        cos_1MD, sin_1MD = self.body.rotary_emb(like, torch.arange(positions, device=like.device)[None])
        half = cos_1MD.shape[-1] // 2
        return cos_1MD[0, :, :half].contiguous(), sin_1MD[0, :, :half].contiguous()

    def hidden(self, cache: Any, batch: int) -> torch.Tensor:
        """Last hidden states [B, C] of the rows' current tokens, whose keys and values join the cache."""
        residual_BC = torch.nn.functional.embedding(cache.rows.token_B[:batch], self.body.embed_tokens.weight)
        x_BC, joined = residual_BC, None
        for index, layer in enumerate(self.layers):
            normal_BC = kernels.add_and_norm(x_BC, joined, layer.input_norm, layer.eps)
            joined = residual_BC
            qkv_BE = torch.nn.functional.linear(normal_BC, layer.qkv, layer.qkv_bias)
            mixed_BE = cache.attend_packed(index, qkv_BE, layer)
            x_BC = torch.nn.functional.linear(mixed_BE, layer.attention.o_proj.weight, layer.attention.o_proj.bias)
            normal_BC = kernels.add_and_norm(x_BC, residual_BC, layer.output_norm, layer.eps)
            x_BC = torch.nn.functional.linear(
                kernels.gated(torch.nn.functional.linear(normal_BC, layer.gate_up)), layer.feed_forward.down_proj.weight
            )
        return kernels.add_and_norm(x_BC, residual_BC, self.body.norm.weight, self.body.norm.variance_epsilon)


class _Layer:
    def __init__(self, layer: Any):
        self.attention, self.feed_forward = layer.self_attn, layer.mlp
        attention = self.attention
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = side_by_side([projection.weight for projection in projections])
        has_bias = attention.q_proj.bias is not None
        self.qkv_bias = side_by_side([projection.bias for projection in projections]) if has_bias else None
        self.gate_up = side_by_side([self.feed_forward.gate_proj.weight, self.feed_forward.up_proj.weight])
        self.input_norm, self.output_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.eps = layer.input_layernorm.variance_epsilon
        self.scale = attention.scaling
        # Qwen decides by layer, Mistral for all layers at once, Llama never.
        for_all = getattr(attention.config, "sliding_window", None)
        self.window = getattr(attention, "sliding_window", for_all)
        q_norm = getattr(attention, "q_norm", None)
        self.norms = (q_norm.weight, attention.k_norm.weight, q_norm.variance_epsilon) if q_norm is not None else None


@torch.no_grad()
def side_by_side(weights: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """One tensor that holds all of these, one below the other; the parameters become views of it.

    >>> a, b = torch.nn.Parameter(torch.ones(1, 2)), torch.nn.Parameter(torch.zeros(2, 2))
    >>> both = side_by_side([a, b])
    >>> b.data += 3
    >>> both.tolist()
    [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]]
    >>> side_by_side([a, b]).data_ptr() == both.data_ptr()  # they stand so already
    True
    """
    first, total = weights[0], sum(map(len, weights))
    starts = [sum(map(len, weights[:i])) for i in range(len(weights))]
    row = first[:1].numel()
    if all(
        weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and weight.storage_offset() == first.storage_offset() + start * row
        for weight, start in zip(weights, starts, strict=True)
    ):
        return first.detach().as_strided((total, *first.shape[1:]), first.stride())
    joined = torch.cat([weight.detach() for weight in weights])
    for weight, start in zip(weights, starts, strict=True):
        weight.data = joined[start : start + len(weight)]
    return joined
