"""The clip: value and gradient of one token at any ratio, and the ratios of a recorded run."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from grpo.core import Limits, policy_loss
from grpo.core.loss import SURROGATES
from grpo.lab.chapters import shipped
from grpo.lab.chapters.listings import listed_clip_fraction
from grpo.lab.chapters.query import Query, number, numbers, whole, word

MOST_RATIO = 3.0
EPSILON = 0.2


def at_ratio(ratio_N: torch.Tensor, advantages_N: torch.Tensor, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, −∂loss/∂logp) of single tokens with these ratios, by the loss's surrogate and autograd.

    >>> ratio, ones = torch.tensor([0.5, 1.0, 1.5]).double(), torch.ones(3).double()
    >>> [[round(x, 6) for x in values.tolist()] for values in at_ratio(ratio, ones)]
    [[0.5, 1.0, 1.2], [0.5, 1.0, 0.0]]
    """
    limits = Limits(**{name: value for name, value in settings.items() if name in Limits.__dataclass_fields__})
    logp_N = ratio_N.log().requires_grad_()
    # The given ratio, not exp of its logarithm, which may lie on the other side of a limit.
    moving_N = ratio_N * (logp_N - logp_N.detach()).exp()
    loss_N = SURROGATES[settings.get("surrogate", "clip")](moving_N, logp_N, advantages_N, limits)
    [gradient_N] = torch.autograd.grad(loss_N.sum(), logp_N)
    return -loss_N.detach(), 0.0 - gradient_N


def _settings(query: Query) -> dict[str, Any]:
    low = number(query, "low", 0.2, 0.0, 0.99)
    return {
        "surrogate": word(query, "surrogate", "clip", list(SURROGATES)),
        "clip_low": low,
        "clip_high": number(query, "high", low, 0.0, 2.0),
        "cap": number(query, "cap", 0.0, 0.0, 10.0),
    }


def clip_explorer(query: Query) -> dict[str, Any]:
    """Value and push over all ratios, and at the reader's ratio."""
    settings, advantage = _settings(query), number(query, "advantage", 1.0, -3.0, 3.0)
    ratio = number(query, "ratio", 1.0, 0.01, MOST_RATIO)
    grid_K = torch.arange(1, 126, dtype=torch.float64) / 50
    value_K, push_K = at_ratio(grid_K, torch.full_like(grid_K, advantage), **settings)
    point = torch.tensor([ratio], dtype=torch.float64)
    value, push = (float(x) for x in at_ratio(point, torch.full_like(point, advantage), **settings))
    limits = (1 - settings["clip_low"], 1 + settings["clip_high"])
    return {
        "ratio": ratio,
        "advantage": advantage,
        "limits": limits,
        "clipped_ratio": min(max(ratio, limits[0]), limits[1]),
        "value": value,
        "push": push,
        "held": push == 0 and advantage != 0,
        "curve": {"ratio": grid_K.tolist(), "value": value_K.tolist(), "push": push_K.tolist()},
        "regions": regions(settings),
    }


def regions(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One ratio below, inside and above the range, for either sign of A: which ones have no gradient."""
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    ratios = {"below": max(low - 0.1, low / 2), "inside": 1.0, "above": high + 0.1}
    rows = []
    for sign in (1.0, -1.0, 0.0):
        for where, ratio in ratios.items():
            point = torch.tensor([ratio], dtype=torch.float64)
            value, push = (float(x) for x in at_ratio(point, torch.full_like(point, sign), **settings))
            held = bool(sign) and push == 0
            rows.append({"sign": sign, "where": where, "ratio": ratio, "value": value, "push": push, "held": held})
    return rows


def ratio_explorer(query: Query) -> dict[str, Any]:
    """One token with its probability changed from `old` to `new`."""
    settings, advantage = _settings(query), number(query, "advantage", 1.0, -3.0, 3.0)
    old, new = number(query, "old", 0.30, 0.01, 0.99), number(query, "new", 0.45, 0.01, 0.99)
    grid_K = torch.arange(1, 100, dtype=torch.float64) / 100
    value_K, push_K = at_ratio(grid_K / old, torch.full_like(grid_K, advantage), **settings)
    point = torch.tensor([new / old], dtype=torch.float64)
    value, push = (float(x) for x in at_ratio(point, torch.full_like(point, advantage), **settings))
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    return {
        "old": old,
        "new": new,
        "ratio": float(point),
        "limits": (low, high),
        "clipped_ratio": min(max(float(point), low), high),
        "value": value,
        "push": push,
        "held": push == 0 and advantage != 0,
        "edges": (old * low, min(1.0, old * high)),
        "curve": {"new": grid_K.tolist(), "value": value_K.tolist(), "push": push_K.tolist()},
    }


def ratio_cards(query: Query) -> list[dict[str, Any]]:
    """The same token at 1, 1.5 and 0.5 times its old probability, for both signs of A."""
    settings, old = _settings(query), number(query, "old", 0.30, 0.01, 0.6)
    cards = []
    for ratio in (1.0, 1.5, 0.5):
        point = torch.tensor([ratio], dtype=torch.float64)
        pushes = {sign: float(at_ratio(point, torch.full_like(point, sign), **settings)[1]) for sign in (1.0, -1.0)}
        cards.append(
            {"ratio": ratio, "old": old, "new": old * ratio, "push_up": pushes[1.0], "push_down": pushes[-1.0]}
        )
    return cards


@lru_cache(maxsize=1)
def recorded_ratios() -> tuple[np.ndarray, np.ndarray]:
    """(ratio, advantage) of every recorded token of the shipped run, at the last update on its batch."""
    ratios, advantages = [], []
    with shipped.opened() as run:
        for row in run.select("SELECT DISTINCT step FROM token_arrays"):
            for tokens in run.token_arrays(row["step"]):
                if tokens["trainer_logprobs"] is not None and tokens["old_logprobs"] is not None:
                    ratios.append(np.exp(tokens["trainer_logprobs"].astype(np.float64) - tokens["old_logprobs"]))
                    advantages.append(tokens["advantages"].astype(np.float64))
    return np.concatenate(ratios), np.concatenate(advantages)


def ratio_histogram(query: Query) -> dict[str, Any]:
    """Histogram of a recorded run's ratios. The clip removes gradients; it does not bound ratios."""
    settings = _settings(query)
    ratio_N, advantages_N = recorded_ratios()
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    logp_N1 = torch.from_numpy(np.log(ratio_N))[:, None]
    rows = (logp_N1, torch.zeros_like(logp_N1), torch.from_numpy(advantages_N), torch.ones_like(logp_N1) > 0)
    _, statistics = policy_loss(*rows, denominator=1.0, **settings)
    edges = np.linspace(0.0, 2.4, 49)
    moved = np.clip(ratio_N[np.abs(ratio_N - 1) > 1e-3], edges[0], edges[-1] - 1e-9)
    counts = np.histogram(moved, edges)[0]
    outside = (ratio_N < low) | (ratio_N > high)
    return {
        "tokens": len(ratio_N),
        "still": int((np.abs(ratio_N - 1) <= 1e-3).sum()),
        "bins": [
            {"from": float(a), "to": float(b), "count": int(n)}
            for a, b, n in zip(edges, edges[1:], counts, strict=False)
        ],
        "limits": (low, high),
        "outside": int(outside.sum()),
        "outside_with_signal": int((outside & (advantages_N != 0)).sum()),
        "clip_low": float(statistics.clip_low),
        "clip_high": float(statistics.clip_high),
        "smallest": float(ratio_N.min()),
        "largest": float(ratio_N.max()),
    }


def clip_fraction(query: Query) -> dict[str, Any]:
    """Two clip fractions: by comparing ratios, as in published code, and by gradients set to 0."""
    ratios = numbers(query, "ratios", (0.7, 0.9, 1.0, 1.1, 1.5), 0.01, MOST_RATIO, least=1, most=16)
    advantage = number(query, "advantage", 0.0, -3.0, 3.0)
    ratio_N = torch.tensor(ratios)
    advantages_N = torch.full_like(ratio_N, advantage)
    _, statistics = policy_loss(
        ratio_N.log()[:, None], torch.zeros(len(ratios), 1), advantages_N, torch.ones(len(ratios), 1) > 0,
        denominator=1.0, clip_low=EPSILON, clip_high=EPSILON,
    )  # fmt: skip
    found = statistics.metrics()
    _, push_N = at_ratio(ratio_N.double(), advantages_N.double())
    return {
        "ratios": ratios,
        "advantage": advantage,
        "by_comparison": float(listed_clip_fraction(ratio_N, advantages_N, EPSILON).mean()),
        "by_gradient": found["clip_low"] + found["clip_high"],
        "pushes": push_N.tolist(),
        "rounding": rounding_counted_as_clipping(),
        "recorded": recorded_share(),
    }


@lru_cache(maxsize=1)
def recorded_share() -> float:
    """Mean clip fraction over the steps of the shipped run, as recorded."""
    with shipped.opened() as run:
        values = [value for name in ("clip_low", "clip_high") for _, value in run.series(name)]
    return 2 * sum(values) / len(values)


def rounding_counted_as_clipping() -> float:
    """The share of 10,000 float32 ratios inside the range that such a comparison counts as clipped."""
    ratio_N = torch.linspace(0.85, 1.15, 100).repeat(100)
    advantages_N = torch.linspace(0.1, 2.0, 100).repeat_interleave(100)
    return float(listed_clip_fraction(ratio_N, advantages_N, EPSILON).mean())


def ratio_levels(query: Query) -> dict[str, Any]:
    """Ratios of one completion: per token, their geometric mean, and their product."""
    length = whole(query, "length", 20, 1, 200)
    drift, jump = number(query, "drift", 0.02, -0.2, 0.2), number(query, "jump", 0.5, -2.0, 2.0)
    advantage, settings = number(query, "advantage", 1.0, -3.0, 3.0), _settings(query)
    logp_1L = torch.full((1, length), drift, dtype=torch.float64)
    logp_1L[0, length // 2] += jump
    mask_1L = torch.ones_like(logp_1L) > 0

    def pushes(ratio: str) -> torch.Tensor:
        leaf_1L = logp_1L.clone().requires_grad_()
        loss, _ = policy_loss(
            leaf_1L, torch.zeros_like(leaf_1L), torch.tensor([advantage], dtype=torch.float64), mask_1L,
            denominator=1.0, ratio=ratio, **settings,
        )  # fmt: skip
        return 0.0 - torch.autograd.grad(loss, leaf_1L)[0][0]

    whole_ratio = math.exp(float(logp_1L.sum().clamp(max=80.0)))
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    return {
        "length": length,
        "token_ratios": logp_1L[0].exp().tolist(),
        "token_pushes": pushes("token").tolist(),
        "sequence_ratio": math.exp(float(logp_1L.mean())),
        "sequence_pushes": pushes("sequence").tolist(),
        "product_ratio": whole_ratio,
        "product_held": (whole_ratio > high and advantage > 0) or (whole_ratio < low and advantage < 0),
        "limits": (low, high),
    }
