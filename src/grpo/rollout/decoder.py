"""The stock model's arithmetic with a third of its kernels, for models built of Llama's blocks.

It computes with a copy of the weights in the precision of computation, in which query, key and value weights stand
side by side, and gate and up weights too: one product serves where the stock model runs three or two. The copy is
refreshed before every rollout. Sums and norms are kept in the precision of the weights, as the trainer keeps them.

Adapters are not added to the copy: in bfloat16 the sum would lose nearly all of what they say, which at first is far
less than the last bit of a weight. They stay two thin products beside the wide one, side by side like the weights.
Frozen weights need no copy: the model's own are laid side by side, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from grpo.adapter import factors, is_adapted
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
        mlp = self.feed_forward
        self.maps = {
            "qkv": list(self.projections),
            "out": [attention.o_proj],
            "gate_up": [mlp.gate_proj, mlp.up_proj],
            "down": [mlp.down_proj],
        }
        self.copies = {name: torch.cat(weights).to(dtype) for name, weights in self._originals().items()}
        for name, weights in self._originals().items():
            if not _learns(weights) and weights[0].dtype == dtype:
                for weight, part in zip(weights, self.copies[name].split(list(map(len, weights))), strict=True):
                    weight.data = part
        self.adapters = {
            name: _side_by_side(maps, dtype) for name, maps in self.maps.items() if any(map(is_adapted, maps))
        }

    def _originals(self) -> dict[str, list[torch.Tensor]]:
        weights = {name: [layer.weight for layer in maps] for name, maps in self.maps.items()}
        biases = {f"{name}_bias": [layer.bias for layer in maps] for name, maps in self.maps.items()}
        return {name: held for name, held in (weights | biases).items() if held[0] is not None}

    @torch.no_grad()
    def refresh(self) -> None:
        for name, weights in self._originals().items():
            if _learns(weights):
                for weight, part in zip(weights, self.copies[name].split(list(map(len, weights))), strict=True):
                    part.copy_(weight)
        for name, places in self.adapters.items():
            for place, values in zip(places, _side_by_side(self.maps[name], places[0].dtype), strict=True):
                place.copy_(values)

    def product(self, x_BC: torch.Tensor, name: str) -> torch.Tensor:
        out_BE = linear(x_BC, self.copies[name], self.copies.get(f"{name}_bias"))
        if name in self.adapters:
            down_RC, up_ER = self.adapters[name]
            out_BE.addmm_(linear(x_BC, down_RC), up_ER.t())
        return out_BE


def _learns(weights: Sequence[torch.Tensor]) -> bool:
    return any(weight.requires_grad for weight in weights)


def _side_by_side(maps: Sequence[Any], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The adapters of maps that read the same input as one: [R, C], and [E, R] with a block for each map."""
    down_RC = torch.cat([factors(layer)[0] for layer in maps if is_adapted(layer)])
    blocks = [factors(layer)[1] if is_adapted(layer) else down_RC.new_zeros(len(layer.weight), 0) for layer in maps]
    return down_RC.to(dtype), torch.block_diag(*blocks).to(dtype)


class Decoder:
    def __init__(self, policy: Policy):
        self.policy, self.dtype = policy, policy.compute_dtype
        self.body = policy.model.base_model
        self.layers = [Layer(layer, self.dtype) for layer in self.body.layers]
        head = policy.head_weight().detach()
        self.head = head if policy.adapter else head.clone()  # a frozen one is read where it is

    def refresh(self) -> None:
        """The weights as training has left them."""
        for layer in self.layers:
            layer.refresh()
        if not self.policy.adapter:
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
            normal_BC = kernels.add_and_norm(x_BC, residual_BC, before.weight, before.variance_epsilon, self.dtype)
            qkv_BE = layer.product(normal_BC, "qkv")
            x_BC = layer.product(attend(index, qkv_BE, layer), "out")
            normal_BC = kernels.add_and_norm(x_BC, residual_BC, after.weight, after.variance_epsilon, self.dtype)
            x_BC = layer.product(kernels.gated(layer.product(normal_BC, "gate_up")), "down")
        norm = self.body.norm
        return kernels.add_and_norm(x_BC, residual_BC, norm.weight, norm.variance_epsilon, self.dtype)
