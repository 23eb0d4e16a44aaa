"""Chapter 4, the loss: from an advantage to a push on every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from grpo.config.presets import PRESETS
from grpo.core import denominator, kl_estimate, policy_loss, token_loss, token_terms
from grpo.core.explain import tabular
from grpo.core.loss import clip, policy_ratio, weighted_sum
from grpo.lab.chapters.clipping import (
    at_ratio,
    clip_explorer,
    clip_fraction,
    ratio_cards,
    ratio_explorer,
    ratio_histogram,
    ratio_levels,
)
from grpo.lab.chapters.distance import drift_over_steps, kl_of_a_token, kl_of_bars, train_tabular
from grpo.lab.chapters.fifty_lines import grpo_loss_in_fifty_lines
from grpo.lab.chapters.listings import listed_clip_fraction
from grpo.lab.chapters.own_group import group_tensors, own_group, own_token, parse_inputs, train_on_group
from grpo.lab.chapters.query import Query, number, whole
from grpo.lab.chapters.trl_config import trl_equivalent
from grpo.lab.tokens import loss_settings

AGGREGATES = ("sequence", "token", "constant")


def aggregation(query: Query) -> dict[str, Any]:
    """Token pushes of two completions of different lengths, for every kind of average."""
    lengths = [whole(query, "short", 4, 1, 40), whole(query, "long", 16, 1, 40)]
    advantages = [number(query, "a_short", 1.0, -2.0, 2.0), number(query, "a_long", -1.0, -2.0, 2.0)]
    longest = 40
    mask_NL = torch.arange(longest) < torch.tensor(lengths)[:, None]
    rows = []
    for aggregate in AGGREGATES:
        divide_by = denominator(torch.tensor(lengths), aggregate, longest)
        leaf_NL = torch.zeros(2, longest, dtype=torch.float64, requires_grad=True)
        loss, _ = policy_loss(
            leaf_NL, leaf_NL.detach(), torch.tensor(advantages, dtype=torch.float64), mask_NL,
            denominator=divide_by, aggregate=aggregate,
        )  # fmt: skip
        push_NL = 0.0 - torch.autograd.grad(loss, leaf_NL)[0]
        rows.append(
            {
                "aggregate": aggregate,
                "denominator": divide_by,
                "per_token": [float(push_NL[i, 0]) for i in range(2)],
                "per_completion": push_NL.sum(dim=1).tolist(),
                "loss": float(loss.detach()),
            }
        )
    return {"lengths": lengths, "advantages": advantages, "longest": longest, "rows": rows}


def identity(query: Query) -> dict[str, Any]:
    """A token's push at ρ = 1 and β = 0 with every preset, and with −A·log π."""
    advantage = number(query, "advantage", 1.5, -3.0, 3.0)
    rows = []
    for name, preset in PRESETS.items():
        settings = loss_settings(vars(preset.settings))
        leaf_11 = torch.tensor([[-0.7]], dtype=torch.float64, requires_grad=True)
        loss, _ = policy_loss(
            leaf_11, leaf_11.detach(), torch.tensor([advantage], dtype=torch.float64), torch.ones(1, 1) > 0,
            **(settings | {"denominator": 1.0, "beta": 0.0, "aggregate": "token"}),
        )  # fmt: skip
        rows.append(
            {"preset": name, "loss": float(loss.detach()), "push": float(-torch.autograd.grad(loss, leaf_11)[0])}
        )
    leaf = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    plain = float(-torch.autograd.grad(-advantage * leaf, leaf)[0])
    return {"advantage": advantage, "rows": rows, "plain": plain}


def in_fifty_lines(query: Query) -> dict[str, Any]:
    """The loss of the reader's group by the fifty lines and by the trainer."""
    inputs = parse_inputs(query)
    found = train_on_group(inputs)
    if not found.updates:
        return {"fifty": 0.0, "trainer": 0.0, "difference": 0.0, "signal": False}
    tensors = group_tensors(inputs)
    loss = float(grpo_loss_in_fifty_lines(**tensors, clip=inputs.loss.clip_low, beta=inputs.loss.beta))
    return {"fifty": loss, "trainer": found.loss, "difference": abs(loss - found.loss), "signal": True}


ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "own": own_group,
    "token": own_token,
    "ratio": ratio_explorer,
    "cards": ratio_cards,
    "clip": clip_explorer,
    "histogram": ratio_histogram,
    "fraction": clip_fraction,
    "levels": ratio_levels,
    "kl": kl_of_a_token,
    "bars": kl_of_bars,
    "drift": drift_over_steps,
    "aggregation": aggregation,
    "identity": identity,
    "fifty": in_fifty_lines,
    "trl": trl_equivalent,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "policy_loss": policy_loss,
    "clip": clip,
    "policy_ratio": policy_ratio,
    "weighted_sum": weighted_sum,
    "denominator": denominator,
    "kl_estimate": kl_estimate,
    "expected_kl_gradient": tabular.expected_kl_gradient,
    "tabular_kl": tabular.kl,
    "token_terms": token_terms,
    "token_loss": token_loss,
    "train_tabular": train_tabular,
    "at_ratio": at_ratio,
    "listed_clip_fraction": listed_clip_fraction,
    "fifty": grpo_loss_in_fifty_lines,
    "train_on_group": train_on_group,
    "trl_equivalent": trl_equivalent,
}
TRIALS: dict[str, dict[str, Any]] = {
    "one-or-eight-updates": {
        "arms": [
            {"label": "one update per batch", "settings": {"loss.beta": 0.0}},
            {"label": "eight updates per batch", "settings": {"loss.beta": 0.0, "optimizer.epochs": 8}},
        ],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "loss", "clip_low", "clip_high", "ratio_max"],
    },
}
