"""Linear layers on a CPU with their weights laid out once for many products: oneDNN's own layout.

A plain product of a few rows spends a quarter to half of its time reading weights in the wrong order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

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


@contextmanager
def packed(model: Any, rows: int) -> Iterator[None]:
    """Within it, linear layers compute with a laid-out copy of their weights, made for inputs of about `rows` rows."""
    layers = [layer for layer in model.modules() if type(layer) is torch.nn.Linear]
    for layer in layers:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        vars(layer)["forward"] = partial(_product, weight=weight, bias=layer.bias)  # before the class's own
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _product(x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
