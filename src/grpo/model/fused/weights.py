"""The working copy of a model's weights, in the precision of computation, with linear maps of one input concatenated.

One matrix product replaces three (queries, keys, values) or two (gate and up) of the stock model. Training updates the
model's own weights, usually float32; the copy is refreshed when they have changed. Gradients are added to those of the
model's own weights, usually in float32, for any number of micro-batches.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from grpo.model.lora import factor_weights, factors, is_adapted
from grpo.model.matmul import matmul

BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute what `Layer` computes."""
FIXED_ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that do not depend on the longest position of the batch."""


def can_be_fused(model: Any) -> bool:
    layers = getattr(model.base_model, "layers", None)
    if not layers or {type(layer).__name__ for layer in layers} - BLOCKS:
        return False
    return getattr(model.config, "hidden_act", None) == "silu" and has_fixed_rotation(model)


def has_fixed_rotation(model: Any) -> bool:
    """Whether the rotary angles of a position are the same in every batch, so that one table serves all. True without
    rotary embeddings."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    return getattr(rotary, "rope_type", "default") in FIXED_ROTATIONS


def supports_flash_attention(width: int, device: torch.device) -> bool:
    """Whether flash attention over sequences of unequal length supports heads of this width: from Ampere on."""
    return width % 8 == 0 and width <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)


class Linear:
    """Linear maps of one input as one map, with their LoRA adapters."""

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype):
        self.modules, self.sizes = modules, [len(module.weight) for module in modules]
        self.trainable = any(module.weight.requires_grad for module in modules)
        self.weight = torch.cat([module.weight.detach() for module in modules]).to(dtype)
        biased = modules[0].bias is not None
        self.bias = torch.cat([module.bias.detach() for module in modules]).to(dtype) if biased else None
        self.adapter = Adapter(modules, dtype) if any(map(is_adapted, modules)) else None
        for own, part in self._parts():
            if needs_no_copy(own, dtype):
                own.data = part  # a view of the concatenation

    def _parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every weight and bias of the model, and the part of the concatenation that copies it."""
        yield from zip([module.weight for module in self.modules], self.weight.split(self.sizes), strict=True)
        if self.bias is not None:
            yield from zip([module.bias for module in self.modules], self.bias.split(self.sizes), strict=True)

    @torch.no_grad()
    def refresh(self) -> None:
        for own, part in self._parts():
            if own.data_ptr() != part.data_ptr():
                part.copy_(own)
        if self.adapter:
            self.adapter.refresh()

    def __call__(self, x_TC: torch.Tensor) -> torch.Tensor:
        out_TE = linear(x_TC, self.weight, self.bias)
        return self.adapter.add_to(out_TE, x_TC) if self.adapter else out_TE

    def unrounded(self, x_TC: torch.Tensor) -> torch.Tensor:
        """map(x) without its bias, in float32 or wider: the kernel that rounds the result adds the bias."""
        out_TE = matmul(x_TC, self.weight.t(), dtype=torch.promote_types(x_TC.dtype, torch.float32))
        return self.adapter.add_to(out_TE, x_TC) if self.adapter else out_TE

    def add_to(self, sum_TC: torch.Tensor, x_TI: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """sum + map(x); the map's result is not rounded before it is added to a wider sum."""
        total_TC = matmul(x_TI, self.weight.t(), onto=sum_TC, in_place=in_place)
        if self.bias is not None:
            total_TC += self.bias
        return self.adapter.add_to(total_TC, x_TI) if self.adapter else total_TC

    def input_grad(self, grad_TE: torch.Tensor) -> torch.Tensor:
        """Gradient of the input."""
        grad_TC = grad_TE @ self.weight
        return self.adapter.add_input_grad(grad_TC, grad_TE) if self.adapter else grad_TC

    def accumulate_grad(self, grad_TE: torch.Tensor, x_TC: torch.Tensor) -> None:
        """Adds the gradient of the weights and biases to their `.grad`."""
        if self.adapter:
            self.adapter.accumulate_grad(grad_TE, x_TC)
        if not self.trainable:
            return
        self._add_to_weights(grad_TE, x_TC)
        if self.bias is not None:
            grad_E = grad_TE.sum(dim=0, dtype=torch.float32)
            for module, part in zip(self.modules, grad_E.split(self.sizes), strict=True):
                add_gradient(module.bias, part)

    def _add_to_weights(self, grad_TE: torch.Tensor, x_TC: torch.Tensor) -> None:
        if (whole_EC := self._gradient()) is not None:
            matmul(grad_TE.t(), x_TC, onto=whole_EC, in_place=True)
            return
        whole_EC = matmul(grad_TE.t(), x_TC, dtype=self.modules[0].weight.grad_dtype)
        for module, part in zip(self.modules, whole_EC.split(self.sizes), strict=True):
            if module.weight.grad is None:
                module.weight.grad = part
            else:
                module.weight.grad += part

    def _gradient(self) -> torch.Tensor | None:
        """The concatenated gradient of which the maps' gradients are views; None if they are not.

        Only those views hold it: once `.grad` is None, its memory is free for the next rollout.
        """
        first = self.modules[0].weight.grad
        whole_EC = None if first is None else first._base
        if first is None or whole_EC is None or whole_EC.shape != self.weight.shape:
            return None
        begins = whole_EC.data_ptr() == first.data_ptr() and whole_EC.stride() == first.stride()
        return whole_EC if begins else None


class Adapter:
    """The LoRA adapters of maps of one input as one: A [R, C], and B [E, R] block-diagonal, with its scale.

    They are not merged into the weights: in bfloat16 an adapter's change is at first far smaller than the last bit of a
    weight and would be rounded away. They stay two small matrix products.
    """

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype):
        self.modules, self.dtype = modules, dtype
        self.down_RC, self.up_ER = self._side_by_side()

    def _side_by_side(self) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [factors(module) if is_adapted(module) else None for module in self.modules]
        down_RC = torch.cat([pair[0] for pair in pairs if pair])
        nothing = [down_RC.new_zeros(len(module.weight), 0) for module in self.modules]
        blocks = [pair[1] if pair else none for pair, none in zip(pairs, nothing, strict=True)]
        return down_RC.to(self.dtype), torch.block_diag(*blocks).to(self.dtype)

    def refresh(self) -> None:
        for place, values in zip((self.down_RC, self.up_ER), self._side_by_side(), strict=True):
            place.copy_(values)

    @property
    def off(self) -> bool:
        return next(module for module in self.modules if is_adapted(module)).disable_adapters

    def add_to(self, sum_TE: torch.Tensor, x_TC: torch.Tensor) -> torch.Tensor:
        return sum_TE if self.off else matmul(linear(x_TC, self.down_RC), self.up_ER.t(), onto=sum_TE, in_place=True)

    def add_input_grad(self, sum_TC: torch.Tensor, grad_TE: torch.Tensor) -> torch.Tensor:
        return sum_TC if self.off else sum_TC.addmm_(grad_TE @ self.up_ER, self.down_RC)

    def accumulate_grad(self, grad_TE: torch.Tensor, x_TC: torch.Tensor) -> None:
        if self.off:
            return
        up_grad_ER = matmul(grad_TE.t(), linear(x_TC, self.down_RC), dtype=torch.float32)
        down_grad_RC = matmul((grad_TE @ self.up_ER).t(), x_TC, dtype=torch.float32)
        row = column = 0
        for module in self.modules:
            end = row + len(module.weight)
            if is_adapted(module):
                down, up, scale = factor_weights(module)
                rank = len(down)
                add_gradient(down, down_grad_RC[column : column + rank])
                add_gradient(up, scale * up_grad_ER[row:end, column : column + rank])
                column += rank
            row = end


class Layer:
    """The linear maps, norms and settings of one block."""

    def __init__(self, layer: Any, dtype: torch.dtype):
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = Linear([attention.q_proj, attention.k_proj, attention.v_proj], dtype)
        self.out = Linear([attention.o_proj], dtype)
        self.gate_up = Linear([mlp.gate_proj, mlp.up_proj], dtype)
        self.down = Linear([mlp.down_proj], dtype)
        self.attention_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.scale: float = attention.scaling
        self.window = window_of(layer)
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


def window_of(layer: Any) -> int | None:
    """The sliding window of a block: per layer in Qwen, one for all layers in Mistral. Llama has none, even where its
    config names one."""
    for_all = layer.self_attn.config.sliding_window if "Mistral" in type(layer).__name__ else None
    return getattr(layer.self_attn, "sliding_window", for_all)


class WeightAddresses:
    """Memory addresses of a model's weights. CUDA graphs and working copies are valid only while they stay the same."""

    def __init__(self, model: Any):
        self.model = model
        self.parameters = list(model.parameters())
        self.addresses = self._addresses()
        # Comparing these tables is several times faster than walking through all modules again.
        tables = (table for module in model.modules() for table in (module._modules, module._parameters) if table)
        self.members = [(table, list(table.values())) for table in tables]

    def _addresses(self) -> list[int]:
        return [weight.data_ptr() for weight in self.parameters]

    def match(self, model: Any) -> bool:
        """Whether this is the same model, with the same modules (LoRA adds some) and weights at the same addresses."""
        if model is not self.model or self._addresses() != self.addresses:
            return False
        return all(
            len(table) == len(members) and all(map(operator.is_, table.values(), members))
            for table, members in self.members
        )


class Weights:
    """The working copy of the whole model."""

    def __init__(self, model: Any, dtype: torch.dtype):
        self.model, self.body, self.dtype = model, model.base_model, dtype
        config = model.config
        self.heads: int = config.num_attention_heads
        self.key_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers = [Layer(layer, dtype) for layer in self.body.layers]
        output = model.get_output_embeddings().weight
        self.head = output.detach().to(dtype, copy=not needs_no_copy(output, dtype))
        self.head_version = output._version
        self.addresses = WeightAddresses(model)
        self.stamp = self._stamp()
        self._rotation: tuple[torch.Tensor, torch.Tensor] | None = None

    def refresh(self) -> None:
        """Updates the copy if the model's weights have changed."""
        if (now := self._stamp()) == self.stamp:
            return
        for layer in self.layers:
            layer.refresh()
        output = self.model.get_output_embeddings().weight
        if output._version != self.head_version and output.data_ptr() != self.head.data_ptr():
            self.head.copy_(output.detach())
        self.head_version, self.stamp = output._version, now

    def _stamp(self) -> tuple[int, ...]:
        """Versions of all weights. Writes in place increment them; for the fused AdamW, `distributed.sharded` does."""
        return tuple(weight._version for weight in self.addresses.parameters)

    def rotation(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of at least `positions` positions, [positions, D / 2], from the stock model's module."""
        if self._rotation is None or len(self._rotation[0]) < positions:
            like = self.body.embed_tokens.weight[:1].detach()
            size = 1 << max(positions - 1, 1).bit_length()
            cos_1MD, sin_1MD = self.body.rotary_emb(like, torch.arange(size, device=like.device)[None])
            half = cos_1MD.shape[-1] // 2
            self._rotation = cos_1MD[0, :, :half].contiguous(), sin_1MD[0, :, :half].contiguous()
        return self._rotation


def needs_no_copy(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the model's own weight serves as working copy: it is frozen, or held in the precision of computation
    while the optimizer has its float32 values."""
    return weight.dtype == dtype and (not weight.requires_grad or weight.grad_dtype != dtype)


def add_gradient(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    if not weight.requires_grad:
        return
    if weight.grad is None:
        weight.grad = gradient.to(weight.grad_dtype)
    else:
        weight.grad += gradient.to(weight.grad_dtype)
