"""Ratio, clip, KL and gradient of every single token of a completion, all computed by `policy_loss`.

A token's push is minus the derivative of `policy_loss`. Its share of the loss is `policy_loss` with the advantages of
all other tokens set to 0. It is clipped if its advantage is not 0 and its derivative is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grpo.core.kl import kl_term
from grpo.core.loss import policy_loss, policy_ratio


@dataclass(frozen=True, eq=False)
class TokenTerms:
    """All [L]."""

    ratio: torch.Tensor
    """ρ = exp(logp − old); with one ratio per completion, the same for every token."""
    clip: torch.Tensor
    """+1 if the upper clip removes the gradient, −1 if the lower clip does, 0 otherwise."""
    kl: torch.Tensor | None
    """Estimate of the KL divergence from the reference; None without one."""
    push: torch.Tensor
    """−∂loss/∂logp: direction and size of the update of the token's log-probability."""


def token_terms(
    logp_L: torch.Tensor,
    old_logp_L: torch.Tensor,
    advantages_L: torch.Tensor,
    *,
    denominator: float,
    ref_logp_L: torch.Tensor | None = None,
    **settings: Any,
) -> TokenTerms:
    """`settings` are those of `policy_loss`: ratio, surrogate and its limits, aggregate, beta, kl.

    The example of `policy_loss`: ρ = e^0.5 > 1.2 with A = 1 is clipped, ρ = 1 is pushed up by A / |o|.

    >>> logp, old = torch.tensor([-0.5, -1.0]).double(), torch.tensor([-1.0, -1.0]).double()
    >>> terms = token_terms(logp, old, torch.ones(2).double(), denominator=1.0)
    >>> [[round(value, 4) for value in values.tolist()] for values in (terms.ratio, terms.clip, terms.push)]
    [[1.6487, 1.0], [1, 0], [0.0, 0.5]]
    """
    mask_1L = torch.ones(1, len(logp_L), dtype=torch.bool)
    [ratio_L] = policy_ratio(logp_L[None], old_logp_L[None], mask_1L, settings.get("ratio", "token"))
    clippable = {**settings, "beta": 0.0}
    free_push_L = _push(logp_L, old_logp_L, advantages_L, None, denominator, clippable)
    held_L = (free_push_L == 0) & (advantages_L != 0)
    return TokenTerms(
        ratio=ratio_L,
        clip=torch.where(held_L, torch.sign(ratio_L - 1), 0.0).int(),
        kl=None if ref_logp_L is None else kl_term(logp_L, ref_logp_L, ratio_L, settings.get("kl", "k3")),
        push=_push(logp_L, old_logp_L, advantages_L, ref_logp_L, denominator, settings),
    )


def token_loss(
    position: int,
    logp_L: torch.Tensor,
    old_logp_L: torch.Tensor,
    advantages_L: torch.Tensor,
    *,
    denominator: float,
    ref_logp_L: torch.Tensor | None = None,
    **settings: Any,
) -> float:
    """One token's share of the update's loss. The shares of all tokens of all completions add up to the loss.

    The other tokens stay in the completion, so that its length and ratio stay, but with advantage and KL 0.

    >>> logp, old = torch.tensor([-0.5, -1.0]).double(), torch.tensor([-1.0, -1.0]).double()
    >>> [round(token_loss(i, logp, old, torch.ones(2).double(), denominator=1.0), 4) for i in (0, 1)]
    [-0.6, -0.5]
    """
    others_L = torch.arange(len(logp_L)) != position
    ref_logp_L = None if ref_logp_L is None else torch.where(others_L, logp_L, ref_logp_L)
    loss = _loss(logp_L, old_logp_L, advantages_L.masked_fill(others_L, 0.0), ref_logp_L, denominator, settings)
    return float(loss)


def _loss(
    logp_L: torch.Tensor,
    old_logp_L: torch.Tensor,
    advantages_L: torch.Tensor,
    ref_logp_L: torch.Tensor | None,
    denominator: float,
    settings: dict[str, Any],
) -> torch.Tensor:
    mask_1L = torch.ones(1, len(logp_L), dtype=torch.bool)
    ref_1L = None if ref_logp_L is None else ref_logp_L[None]
    rows = (logp_L[None], old_logp_L[None], advantages_L[None], mask_1L)
    loss, _ = policy_loss(*rows, denominator=denominator, ref_logp=ref_1L, **settings)
    return loss


def _push(
    logp_L: torch.Tensor,
    old_logp_L: torch.Tensor,
    advantages_L: torch.Tensor,
    ref_logp_L: torch.Tensor | None,
    denominator: float,
    settings: dict[str, Any],
) -> torch.Tensor:
    leaf_L = logp_L.detach().clone().requires_grad_()
    loss = _loss(leaf_L, old_logp_L, advantages_L, ref_logp_L, denominator, settings)
    [gradient_L] = torch.autograd.grad(loss, leaf_L)
    return 0.0 - gradient_L  # 0 instead of −0
