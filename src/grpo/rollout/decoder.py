"""The stock model's arithmetic with a third of its kernels, for models built of Llama's blocks.

It computes with a copy of the weights in the precision of computation, in which query, key and value weights stand
side by side, and gate and up weights too: one product serves where the stock model runs three or two. The copy is
refreshed before every rollout. Sums and norms are kept in the precision of the weights, as the trainer keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from grpo.policy import Policy
from grpo.rollout import kernels

BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute exactly what `Decoder` computes."""

Attend = Callable[[int, torch.Tensor, "Layer"], torch.Tensor]
"""(layer, queries keys and values [B, E], its settings) -> mixed values [B, heads * D]."""


def can_decode(policy: Policy) -> bool:
    layers = getattr(policy.model.base_model, "layers", None)
    if not layers or {type(layer).__name__ for layer in layers} - BLOCKS:
        return False
    return getattr(policy.model.config, "hidden_act", None) == "silu"


class Layer:
    def __init__(self, layer: Any, dtype: torch.dtype):
        self.attention, self.feed_forward = layer.self_attn, layer.mlp
        self.norms_of_layer = layer.input_layernorm, layer.post_attention_layernorm
        attention = self.attention
        self.projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.scale = attention.scaling
        # Qwen decides by layer, Mistral for all layers at once, Llama never.
        for_all = getattr(attention.config, "sliding_window", None)
        self.window: int | None = getattr(attention, "sliding_window", for_all)
        q_norm = getattr(attention, "q_norm", None)
        self.norms = (q_norm.weight, attention.k_norm.weight, q_norm.variance_epsilon) if q_norm is not None else None
        self.copies = {name: torch.cat(weights).to(dtype) for name, weights in self._originals().items()}

    def _originals(self) -> dict[str, list[torch.Tensor]]:
        mlp, output = self.feed_forward, self.attention.o_proj
        named = {
            "qkv": [projection.weight for projection in self.projections],
            "qkv_bias": [projection.bias for projection in self.projections],
            "out": [output.weight],
            "out_bias": [output.bias],
            "gate_up": [mlp.gate_proj.weight, mlp.up_proj.weight],
            "down": [mlp.down_proj.weight],
        }
        return {name: [w.detach() for w in weights] for name, weights in named.items() if weights[0] is not None}

    def refresh(self) -> None:
        for name, weights in self._originals().items():
            start = 0
            for weight in weights:
                self.copies[name][start : start + len(weight)].copy_(weight)
                start += len(weight)


class Decoder:
    def __init__(self, policy: Policy):
        self.policy, self.dtype = policy, policy.compute_dtype
        self.body = policy.model.base_model
        self.layers = [Layer(layer, self.dtype) for layer in self.body.layers]
        self.head = policy.head_weight().detach().clone()

    def refresh(self) -> None:
        """The weights as training has left them."""
        for layer in self.layers:
            layer.refresh()
        self.head.copy_(self.policy.model.get_output_embeddings().weight)

    def rotation(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of every position, [positions, D / 2], by the stock model's own rule and rounding."""
        like = self.body.embed_tokens.weight[:1]
        cos_1MD, sin_1MD = self.body.rotary_emb(like, torch.arange(positions, device=like.device)[None])
        half = cos_1MD.shape[-1] // 2
        return cos_1MD[0, :, :half].contiguous(), sin_1MD[0, :, :half].contiguous()

    def hidden(self, token_B: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Last hidden states [B, C], in the precision of computation."""
        residual_BC, x_BC = embedding(token_B, self.body.embed_tokens.weight), None
        for index, layer in enumerate(self.layers):
            before, after = layer.norms_of_layer
            weights = layer.copies
            normal_BC = kernels.add_and_norm(x_BC, residual_BC, before.weight, before.variance_epsilon, self.dtype)
            qkv_BE = linear(normal_BC, weights["qkv"], weights.get("qkv_bias"))
            x_BC = linear(attend(index, qkv_BE, layer), weights["out"], weights.get("out_bias"))
            normal_BC = kernels.add_and_norm(x_BC, residual_BC, after.weight, after.variance_epsilon, self.dtype)
            x_BC = linear(kernels.gated(linear(normal_BC, weights["gate_up"])), weights["down"])
        norm = self.body.norm
        return kernels.add_and_norm(x_BC, residual_BC, norm.weight, norm.variance_epsilon, self.dtype)
