"""Linear layers on a CPU with their weights laid out once for many products: oneDNN's own layout.

A plain product of a few rows spends a quarter to half of its time reading weights in the wrong order. In models built
of Llama's blocks, whole blocks are replaced as well: one token per row is little work, and a stock block spends much of
its time on starting some forty small operations. An adapter is added to the copy, so that an adapted layer costs what a
plain one costs; in float32 the sum is as exact as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.functional import rms_norm

from grpo.model.attention import Layout
from grpo.model.lora import folded_weight, is_adapted, whole_layers
from grpo.model.policy import Policy

SMALL_MODEL = 5_000_000
"""Parameters below which everything fits the cache and laying out does not pay."""
BLOCKS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "MistralDecoderLayer"}
"""Decoder layers that compute exactly what `Block` computes, where the activation is silu."""


def can_pack(policy: Policy) -> bool:
    return (
        policy.device.type == "cpu"
        and policy.model.dtype == policy.compute_dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and sum(weight.numel() for weight in policy.model.parameters()) > SMALL_MODEL
    )


def sampling_layers(policy: Policy, rows: int) -> AbstractContextManager[None]:
    """Within it, linear layers compute in the way that is fastest for many small products with the same weights."""
    if can_pack(policy):
        return packed(policy.model, rows)
    exact = policy.device.type == "cpu" and policy.compute is None
    return folded(policy.model) if policy.adapter and exact else nullcontext()


@contextmanager
def packed(model: Any, rows: int) -> Iterator[None]:
    """Within it, linear layers compute with a laid-out copy of their weights, made for inputs of about `rows` rows."""
    silu = getattr(model.config, "hidden_act", None) == "silu"
    blocks = [module for module in model.modules() if silu and type(module).__name__ in BLOCKS]
    within = {id(module) for block in blocks for module in block.modules()}
    product = partial(Product, rows=rows)
    lone = {layer: product([layer]) for layer in whole_layers(model) if id(layer) not in within}
    with _replaced({**lone, **{block: Block(block, product) for block in blocks}}):
        yield


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """Within it, adapted layers compute as plain ones, with weights that hold what the adapter adds."""
    adapted = filter(is_adapted, whole_layers(model))
    product = torch.nn.functional.linear
    with _replaced({layer: partial(product, weight=folded_weight(layer), bias=layer.bias) for layer in adapted}):
        yield


@contextmanager
def _replaced(lean: Mapping[Any, Callable[..., torch.Tensor]]) -> Iterator[None]:
    for module, forward in lean.items():
        vars(module)["forward"] = forward  # before the class's own
    try:
        yield
    finally:
        for module in lean:
            del vars(module)["forward"]


class Product:
    """Linear layers of one input as one, their weights laid out."""

    def __init__(self, layers: Sequence[Any], rows: int):
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(_one([folded_weight(layer) for layer in layers]), rows)
        self.bias = _one(biases) if biases else None

    def __call__(self, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, activation, [], "")

    def onto(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """total + product."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, total, self.weight, self.bias, "add")


def _one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class Block:
    """What a decoder layer of Llama's kind computes, with as few operations as it takes."""

    def __init__(self, layer: Any, product: Callable[[Sequence[Any]], Product]):
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = product([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out, self.gate, self.up = product([attention.o_proj]), product([mlp.gate_proj]), product([mlp.up_proj])
        self.down = product([mlp.down_proj])
        self.before, self.after = layer.input_layernorm, layer.post_attention_layernorm
        self.index, self.scale, self.width = attention.layer_idx, attention.scaling, attention.head_dim
        self.value_heads = attention.v_proj.out_features // self.width
        # Qwen decides by layer, Mistral for all layers at once, Llama never.
        for_all = getattr(attention.config, "sliding_window", None) if "Mistral" in type(layer).__name__ else None
        self.window: int | None = getattr(attention, "sliding_window", for_all)

    def __call__(
        self,
        hidden_BTC: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        layout: Layout,
        **unused: Any,
    ) -> torch.Tensor:
        B, T, _ = hidden_BTC.shape
        heads_BTHD = self.qkv(_normal(hidden_BTC, self.before)).view(B, T, -1, self.width)
        turned = rotated(heads_BTHD[:, :, : -self.value_heads], *position_embeddings).transpose(1, 2)
        value = heads_BTHD[:, :, -self.value_heads :].transpose(1, 2)
        query, key = turned[:, : -self.value_heads], turned[:, -self.value_heads :]
        mixed = layout.attend(self.index, query, key, value, self.scale, self.window).reshape(B, T, -1)
        hidden_BTC = self.out.onto(hidden_BTC, mixed)
        normal_BTC = _normal(hidden_BTC, self.after)
        gated = self.gate(normal_BTC, "swish").mul_(self.up(normal_BTC))
        return self.down.onto(hidden_BTC, gated)


def _normal(x_BTC: torch.Tensor, norm: Any) -> torch.Tensor:
    return rms_norm(x_BTC, norm.weight.shape, norm.weight, norm.variance_epsilon)


def rotated(x_BTHD: torch.Tensor, cos_BTD: torch.Tensor, sin_BTD: torch.Tensor) -> torch.Tensor:
    """Rotary positions: the halves of a head are the coordinates of D / 2 points in planes.

    >>> x = torch.tensor([1.0, 2.0]).view(1, 1, 1, 2)  # by a quarter turn
    >>> rotated(x, torch.zeros(1, 1, 2), torch.ones(1, 1, 2)).flatten().tolist()
    [-2.0, 1.0]
    """
    half = x_BTHD.shape[-1] // 2
    cos, sin = cos_BTD[:, :, None], sin_BTD[:, :, None]
    turned = x_BTHD * cos
    turned[..., :half].addcmul_(x_BTHD[..., half:], sin[..., :half], value=-1.0)
    turned[..., half:].addcmul_(x_BTHD[..., :half], sin[..., half:])
    return turned
