"""The working copy of a model's weights: in the precision of computation, maps of the same input side by side.

One product serves where the stock model runs three (queries, keys, values) or two (gate and up). Training keeps the
model's own weights, mostly float32, and brings the copy up to date when they have changed; gradients go straight to
them, in their own precision, however many micro-batches there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from grpo.product import product

BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute exactly what is computed here."""


def can_be_fused(model: Any) -> bool:
    layers = getattr(model.base_model, "layers", None)
    if not layers or {type(layer).__name__ for layer in layers} - BLOCKS:
        return False
    return getattr(model.config, "hidden_act", None) == "silu"


class Linear:
    """Linear maps of one input, as one."""

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype):
        self.modules = modules
        self.weight = torch.cat([module.weight.detach() for module in modules]).to(dtype)
        biased = modules[0].bias is not None
        self.bias = torch.cat([module.bias.detach() for module in modules]).to(dtype) if biased else None
        self.gradient: torch.Tensor | None = None
        """Of the maps side by side; theirs are parts of it."""

    def refresh(self) -> None:
        start = 0
        for module in self.modules:
            end = start + len(module.weight)
            self.weight[start:end].copy_(module.weight)
            if self.bias is not None:
                self.bias[start:end].copy_(module.bias)
            start = end

    def __call__(self, x_TC: torch.Tensor) -> torch.Tensor:
        return linear(x_TC, self.weight, self.bias)

    def onto(self, sum_TC: torch.Tensor, x_TI: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """sum + map(x), without rounding the map's result on the way to a wider sum."""
        total_TC = product(x_TI, self.weight.t(), onto=sum_TC, in_place=in_place)
        return total_TC if self.bias is None else total_TC.add_(self.bias)

    def back(self, grad_TE: torch.Tensor) -> torch.Tensor:
        """Gradient of the input."""
        return grad_TE @ self.weight

    def learn(self, grad_TE: torch.Tensor, x_TC: torch.Tensor) -> None:
        """Adds the gradient of the weights to theirs."""
        if not self.modules[0].weight.requires_grad:
            return
        self._add_to_weights(grad_TE, x_TC)
        if self.bias is not None:
            grad_E = grad_TE.sum(dim=0, dtype=torch.float32)
            for module, part in zip(self.modules, grad_E.split(self._sizes()), strict=True):
                add_gradient(module.bias, part)

    def _add_to_weights(self, grad_TE: torch.Tensor, x_TC: torch.Tensor) -> None:
        first = self.modules[0].weight
        if self.gradient is not None and first.grad is not None and first.grad.data_ptr() == self.gradient.data_ptr():
            product(grad_TE.t(), x_TC, onto=self.gradient, in_place=True)
            return
        self.gradient = product(grad_TE.t(), x_TC, dtype=first.dtype)
        for module, part in zip(self.modules, self.gradient.split(self._sizes()), strict=True):
            if module.weight.grad is None:
                module.weight.grad = part
            else:
                module.weight.grad += part

    def _sizes(self) -> list[int]:
        return [len(module.weight) for module in self.modules]


class Layer:
    """One block's maps, norms and settings."""

    def __init__(self, layer: Any, dtype: torch.dtype):
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = Linear([attention.q_proj, attention.k_proj, attention.v_proj], dtype)
        self.out = Linear([attention.o_proj], dtype)
        self.gate_up = Linear([mlp.gate_proj, mlp.up_proj], dtype)
        self.down = Linear([mlp.down_proj], dtype)
        self.before, self.after = layer.input_layernorm, layer.post_attention_layernorm
        self.scale: float = attention.scaling
        # Qwen decides by layer, Mistral for all layers at once, Llama never.
        for_all = getattr(attention.config, "sliding_window", None)
        self.window: int | None = getattr(attention, "sliding_window", for_all)
        q_norm = getattr(attention, "q_norm", None)
        self.head_norms = None if q_norm is None else (q_norm, attention.k_norm)

    @property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor, float] | None:
        if self.head_norms is None:
            return None
        q_norm, k_norm = self.head_norms
        return q_norm.weight, k_norm.weight, q_norm.variance_epsilon

    def refresh(self) -> None:
        for maps in (self.qkv, self.out, self.gate_up, self.down):
            maps.refresh()


class Weights:
    """The whole model's."""

    def __init__(self, model: Any, dtype: torch.dtype):
        self.model, self.body, self.dtype = model, model.base_model, dtype
        config = model.config
        self.heads: int = config.num_attention_heads
        self.key_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers = [Layer(layer, dtype) for layer in self.body.layers]
        self.head = model.get_output_embeddings().weight.detach().to(dtype, copy=True)
        self.places = weight_places(model)
        self.stamp = self._stamp()
        self._rotation: tuple[torch.Tensor, torch.Tensor] | None = None

    def refresh(self) -> None:
        """Brings the copy up to date, if the model's weights have changed since."""
        if (now := self._stamp()) == self.stamp:
            return
        for layer in self.layers:
            layer.refresh()
        self.head.copy_(self.model.get_output_embeddings().weight)
        self.stamp = now

    def _stamp(self) -> tuple[int, ...]:
        """Every write in place counts a tensor's version up."""
        return tuple(weight._version for weight in self.model.parameters())

    def rotation(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of at least so many positions, [positions, D / 2], by the stock model's own rule."""
        if self._rotation is None or len(self._rotation[0]) < positions:
            like = self.body.embed_tokens.weight[:1].detach()
            room = 1 << max(positions - 1, 1).bit_length()
            cos_1MD, sin_1MD = self.body.rotary_emb(like, torch.arange(room, device=like.device)[None])
            half = cos_1MD.shape[-1] // 2
            self._rotation = cos_1MD[0, :, :half].contiguous(), sin_1MD[0, :, :half].contiguous()
        return self._rotation


def weight_places(model: Any) -> tuple[int, ...]:
    """Where the weights are: captured graphs and working copies of a model whose weights move are worthless."""
    return tuple(weight.data_ptr() for weight in model.parameters())


def add_gradient(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    if not weight.requires_grad:
        return
    if weight.grad is None:
        weight.grad = gradient.to(weight.dtype)
    else:
        weight.grad += gradient.to(weight.dtype)
