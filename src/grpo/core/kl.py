"""Estimates of KL(policy ‖ reference) from sampled tokens (Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

import torch


def kl_estimate(logp: torch.Tensor, ref_logp: torch.Tensor, kind: str = "k3") -> torch.Tensor:
    """One value per token.

    k1 = logp − ref: unbiased as a value, negative half the time, and as a loss its expected gradient is zero.
    k2 = (logp − ref)² / 2: its expected gradient is the reverse KL's.
    k3 = exp(ref − logp) − (ref − logp) − 1: unbiased and never negative; its expected gradient is the forward KL's.
    (k3 times the policy ratio, TRL's default, has the reverse KL's: k3_ratio in `kl_term`.)

    >>> logp, ref = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.5], dtype=torch.float64)
    >>> [round(kl_estimate(logp, ref, kind).item(), 6) for kind in ("k1", "k2", "k3")]
    [0.5, 0.125, 0.106531]
    """
    if kind == "k1":
        return logp - ref_logp
    if kind == "k2":
        return (logp - ref_logp) ** 2 / 2
    if kind == "k3":
        # exp(d) − 1 would lose digits while the policy is close to its reference.
        difference = ref_logp - logp
        return torch.expm1(difference) - difference
    raise ValueError(f"unknown KL estimate {kind!r}: k1, k2 or k3")


def kl_term(logp: torch.Tensor, ref_logp: torch.Tensor, ratio: torch.Tensor, kind: str) -> torch.Tensor:
    """The KL term of the loss, before β: the estimate, for k3_ratio times the policy ratio."""
    estimate = kl_estimate(logp, ref_logp, kind.removesuffix("_ratio"))
    return estimate * ratio if kind.endswith("_ratio") else estimate
