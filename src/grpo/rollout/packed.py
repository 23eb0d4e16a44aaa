"""Linear layers on a CPU with their weights laid out once for many products: oneDNN's own layout.

A plain product of a few rows spends a quarter to half of its time reading weights in the wrong order. An adapter is
added to the copy, so that an adapted layer costs what a plain one costs; in float32 the sum is as exact as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from grpo.adapter import adapted_layers, folded_weights
from grpo.policy import Policy

SMALL_MODEL = 5_000_000
"""Parameters below which everything fits the cache and laying out does not pay."""


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
    layout = partial(torch.ops.mkldnn._reorder_linear_weight, batch_size=rows)
    with _replaced(
        {layer: partial(_product, weight=layout(weight), bias=layer.bias) for layer, weight in folded_weights(model)}
    ):
        yield


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """Within it, adapted layers compute as plain ones, with weights that hold what the adapter adds."""
    adapted = set(adapted_layers(model))
    with _replaced(
        {
            layer: partial(torch.nn.functional.linear, weight=weight, bias=layer.bias)
            for layer, weight in folded_weights(model)
            if layer in adapted
        }
    ):
        yield


@contextmanager
def _replaced(products: dict[Any, Callable[[torch.Tensor], torch.Tensor]]) -> Iterator[None]:
    for layer, product in products.items():
        vars(layer)["forward"] = product  # before the class's own
    try:
        yield
    finally:
        for layer in products:
            del vars(layer)["forward"]


def _product(x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
