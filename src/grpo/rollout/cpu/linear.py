"""Linear layers on a CPU with weights reordered once per rollout into oneDNN's layout.

Without it, a matrix product of a few rows spends a quarter to half of its time reading weights in an unsuitable order.
Llama's blocks are replaced as a whole: one token per row is little work, and a stock block spends much of its time
starting about forty small operations. LoRA adapters are merged into the copy, so that an adapted layer costs no more
than a plain one; in float32 the sum is as exact as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.functional import rms_norm

from grpo.model.attention import Layout
from grpo.model.fused.weights import window_of
from grpo.model.lora import is_adapted, merged_weight, whole_layers
from grpo.model.policy import Policy

SMALL_MODEL = 5_000_000
"""Parameters below which the weights fit the cache and reordering gains nothing."""
BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute what `Block` computes, where the activation is silu."""


def can_reorder(policy: Policy) -> bool:
    return (
        policy.device.type == "cpu"
        and policy.model.dtype == policy.compute_dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and sum(weight.numel() for weight in policy.model.parameters()) > SMALL_MODEL
    )


def sampling_layers(policy: Policy, rows: int) -> AbstractContextManager[None]:
    """While entered, linear layers compute in the fastest way for many small products with the same weights.

    Copies of weights are made here, once; the result can be entered many times.
    """
    if can_reorder(policy):
        return reordered_weights(policy.model, rows)
    exact = policy.device.type == "cpu" and policy.compute is None
    return merged_adapters(policy.model) if policy.adapter and exact else nullcontext()


def reordered_weights(model: Any, rows: int) -> Replaced:
    """Linear layers with a reordered copy of their weights, made for inputs of about `rows` rows."""
    silu = getattr(model.config, "hidden_act", None) == "silu"
    blocks = [module for module in model.modules() if silu and type(module).__name__ in BLOCKS]
    within = {id(module) for block in blocks for module in block.modules()}
    linear = partial(ReorderedLinear, rows=rows)
    single = {layer: linear([layer]) for layer in whole_layers(model) if id(layer) not in within}
    return Replaced({**single, **{block: Block(block, linear) for block in blocks}})


def merged_adapters(model: Any) -> Replaced:
    """Adapted layers that compute as plain ones, with the adapter merged into a copy of the weights."""
    adapted = filter(is_adapted, whole_layers(model))
    linear = torch.nn.functional.linear
    return Replaced({layer: partial(linear, weight=merged_weight(layer), bias=layer.bias) for layer in adapted})


class Replaced(AbstractContextManager[None]):
    """While entered, these modules compute with other functions."""

    def __init__(self, forwards: Mapping[Any, Callable[..., torch.Tensor]]):
        self.forwards = forwards

    def __enter__(self) -> None:
        for module, forward in self.forwards.items():
            vars(module)["forward"] = forward  # hides the class's own

    def __exit__(self, *error: object) -> None:
        for module in self.forwards:
            del vars(module)["forward"]


class ReorderedLinear:
    """Linear layers of one input as one, with reordered weights."""

    def __init__(self, layers: Sequence[Any], rows: int):
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        weight = _concatenated([merged_weight(layer) for layer in layers])
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        self.bias = _concatenated(biases) if biases else None

    def __call__(self, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, activation, [], "")

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """total + the layer's output."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, total, self.weight, self.bias, "add")


def _concatenated(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class Block:
    """A Llama decoder layer in few operations."""

    def __init__(self, layer: Any, linear: Callable[[Sequence[Any]], ReorderedLinear]):
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = linear([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out, self.gate, self.up = linear([attention.o_proj]), linear([mlp.gate_proj]), linear([mlp.up_proj])
        self.down = linear([mlp.down_proj])
        self.attention_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.index, self.scale, self.width = attention.layer_idx, attention.scaling, attention.head_dim
        self.value_heads = attention.v_proj.out_features // self.width
        self.window = window_of(layer)

    def __call__(
        self,
        hidden_BTC: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        **unused: Any,
    ) -> torch.Tensor:
        B, T, _ = hidden_BTC.shape
        heads_BTHD = self.qkv(_norm(hidden_BTC, self.attention_norm)).view(B, T, -1, self.width)
        query_key = rotated(heads_BTHD[:, :, : -self.value_heads], *position_embeddings).transpose(1, 2)
        value = heads_BTHD[:, :, -self.value_heads :].transpose(1, 2)
        query, key = query_key[:, : -self.value_heads], query_key[:, -self.value_heads :]
        mixed = layout.attend(self.index, query, key, value, self.scale, self.window).reshape(B, T, -1)
        hidden_BTC = self.out.add_to(hidden_BTC, mixed)
        normal_BTC = _norm(hidden_BTC, self.mlp_norm)
        gated = self.gate(normal_BTC, "swish").mul_(self.up(normal_BTC))
        return self.down.add_to(hidden_BTC, gated)


def _norm(x_BTC: torch.Tensor, norm: Any) -> torch.Tensor:
    return rms_norm(x_BTC, norm.weight.shape, norm.weight, norm.variance_epsilon)


def rotated(x_BTHD: torch.Tensor, cos_BTD: torch.Tensor, sin_BTD: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: the halves of a head are the coordinates of D / 2 points, each rotated in its plane.

    >>> x = torch.tensor([1.0, 2.0]).view(1, 1, 1, 2)  # by a quarter turn
    >>> rotated(x, torch.zeros(1, 1, 2), torch.ones(1, 1, 2)).flatten().tolist()
    [-2.0, 1.0]
    """
    half = x_BTHD.shape[-1] // 2
    cos, sin = cos_BTD[:, :, None], sin_BTD[:, :, None]
    out = x_BTHD * cos
    out[..., :half].addcmul_(x_BTHD[..., half:], sin[..., :half], value=-1.0)
    out[..., half:].addcmul_(x_BTHD[..., :half], sin[..., half:])
    return out
