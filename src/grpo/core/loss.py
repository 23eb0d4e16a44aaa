"""The policy loss per token: PPO's clip (arXiv 1707.06347 eq. 7) as GRPO uses it (arXiv 2402.03300 eq. 3), and others.

    ρ = exp(logp − old)                    per token, or per completion: exp of the mean (GSPO, 2507.18071) or sum
    ℓ = w · surrogate(ρ, A) + β KL − η H   w: importance weight for the sampler; H: entropy
    loss = Σ weight · ℓ / denominator      weight is 1/|o| for "sequence", else 1

The denominator is computed once per optimizer step, over all its micro-batches, so the way a step is split or packed
never changes its gradient. At ρ = 1, β = η = 0 the derivative of Σ ℓ by every logp is −A (ratio product: −A·|o|).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from grpo.core.correction import sampler_correction
from grpo.core.kl import kl_term
from grpo.core.statistics import LossStatistics


def denominator(lengths_N: torch.Tensor, aggregate: str, max_new_tokens: int) -> float:
    """Divisor of the summed loss of one optimizer step; completions without signal and masked ones count.

    sequence (GRPO): completions. token (DAPO): their tokens. constant (Dr. GRPO): completions × max_new_tokens.

    >>> [denominator(torch.tensor([3, 5]), aggregate, 8) for aggregate in ("sequence", "token", "constant")]
    [2.0, 8.0, 16.0]
    """
    if aggregate == "sequence":
        return float(len(lengths_N))
    if aggregate == "token":
        return float(lengths_N.sum())
    if aggregate == "constant":
        return float(len(lengths_N) * max_new_tokens)
    raise ValueError(f"unknown aggregate {aggregate!r}: sequence, token or constant")


@dataclass(frozen=True)
class Limits:
    """Limits of the ratio; each surrogate reads its own."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    cap: float = 0.0
    """0: none."""
    gate_up: float = 1.0
    gate_down: float = 1.05


Surrogate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Limits], torch.Tensor]
"""(ratio, logp, advantages, limits) -> loss of each token."""


def clip(ratio: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor, limits: Limits) -> torch.Tensor:
    """−min(ρA, clip(ρ)A); with a cap c, no less than cA where A < 0 (dual clip, arXiv 1912.09729)."""
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - limits.clip_low, 1 + limits.clip_high) * advantages)
    if limits.cap:
        gain = torch.where(advantages < 0, torch.maximum(gain, limits.cap * advantages), gain)
    return -gain


def weight(ratio: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor, limits: Limits) -> torch.Tensor:
    """−sg[min(ρ, c)]·A·logp: the ratio weights the gradient, and every token keeps one (CISPO, 2506.13585)."""
    return -(ratio.clamp(max=limits.cap) if limits.cap else ratio).detach() * advantages * logp


def gate(ratio: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor, limits: Limits) -> torch.Tensor:
    """−(4/τ)·σ(τ(ρ − 1))·A: the gradient falls smoothly on both sides, faster for A < 0 (SAPO, 2511.20347)."""
    up, down = (advantages.new_tensor(value) for value in (limits.gate_up, limits.gate_down))
    slope = torch.where(advantages > 0, up, down)
    return -4 / slope * torch.sigmoid(slope * (ratio - 1)) * advantages


def plain(ratio: torch.Tensor, logp: torch.Tensor, advantages: torch.Tensor, limits: Limits) -> torch.Tensor:
    """−ρA: REINFORCE with importance weights."""
    return -ratio * advantages


SURROGATES: Mapping[str, Surrogate] = {"clip": clip, "weight": weight, "gate": gate, "plain": plain}


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    denominator: float,
    ratio: str = "token",
    surrogate: str | Surrogate = "clip",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    cap: float = 0.0,
    gate_up: float = 1.0,
    gate_down: float = 1.05,
    aggregate: str = "sequence",
    beta: float = 0.0,
    ref_logp: torch.Tensor | None = None,
    kl: str = "k3",
    entropy_weight: float = 0.0,
    entropy: torch.Tensor | None = None,
    correction: str = "none",
    correction_cap: float = 2.0,
    sampler_logp: torch.Tensor | None = None,
) -> tuple[torch.Tensor, LossStatistics]:
    """(loss of one micro-batch, its statistics). The losses of a step's micro-batches add up to the step's loss.

    All tensors are [N, L]: a row per completion, `mask` True where it has a token; `advantages` may also be [N], one
    per completion. At weight 0 `ref_logp` and `entropy` are only measured.

    One completion of two tokens, A = 1: the first has ρ = e^0.5 > 1.2 and is clipped, the second has ρ = 1.

    >>> logp = torch.tensor([[-0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    >>> old, ones = torch.tensor([[-1.0, -1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    >>> loss, statistics = policy_loss(logp, old, ones, ones > 0, denominator=1.0)
    >>> loss.item()                                                # −(1.2 + 1.0) / 2
    -1.1
    >>> torch.autograd.grad(loss, logp)[0].tolist()                # the clipped token has gradient 0
    [[0.0, -0.5]]
    >>> statistics.metrics()["clip_high"]
    0.5
    """
    mask = mask.bool()
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(logp)
    # Padding may be NaN, and 0 · NaN is NaN in a backward pass, so it is replaced before any arithmetic.
    logp, old_logp, advantages = (x.masked_fill(~mask, 0.0) for x in (logp, old_logp, advantages))
    ratio_NL = policy_ratio(logp, old_logp, mask, ratio)
    limits = Limits(clip_low, clip_high, cap, gate_up, gate_down)
    compute = SURROGATES[surrogate] if isinstance(surrogate, str) else surrogate
    policy_NL = compute(ratio_NL, logp, advantages, limits)
    limited_NL = kl_NL = None
    if correction != "none":
        sampler_logp = _given(sampler_logp, "a correction needs sampler_logp")
        weights_NL, limited_NL = sampler_correction(old_logp, sampler_logp, mask, correction, correction_cap)
        policy_NL = policy_NL * weights_NL
    if ref_logp is not None:
        kl_NL = kl_term(logp, ref_logp.masked_fill(~mask, 0.0), ratio_NL, kl)
    loss_NL, parts_NL = policy_NL, {"policy_loss": policy_NL}
    if beta:
        parts_NL["kl_loss"] = beta * _given(kl_NL, "beta > 0 needs ref_logp")
        loss_NL = loss_NL + parts_NL["kl_loss"]
    if entropy_weight:
        entropy_NL = _given(entropy, "entropy_weight > 0 needs entropy").masked_fill(~mask, 0.0)
        parts_NL["entropy_bonus"] = entropy_weight * entropy_NL
        loss_NL = loss_NL - parts_NL["entropy_bonus"]
    loss = weighted_sum(loss_NL, mask, aggregate) / denominator
    parts = {name: weighted_sum(part_NL.detach(), mask, aggregate) / denominator for name, part_NL in parts_NL.items()}
    clipped = clipped_tokens(ratio_NL.detach(), advantages, surrogate, limits)
    measured = {"corrected_NL": limited_NL, "kl_NL": kl_NL, "entropy_NL": entropy}
    return loss, LossStatistics.measure(loss, ratio_NL, advantages, mask, parts=parts, clipped=clipped, **measured)


def _given(tensor: torch.Tensor | None, message: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(message)
    return tensor


def policy_ratio(logp: torch.Tensor, old_logp: torch.Tensor, mask: torch.Tensor, ratio: str) -> torch.Tensor:
    """ρ of every token: its own (token), or one for all tokens of a completion: the geometric mean of theirs (sequence)
    or their product, the ratio of the completion's probabilities (product).

    >>> logp, mask = torch.tensor([[0.2, 0.4]]), torch.ones(1, 2, dtype=torch.bool)
    >>> [policy_ratio(logp, 0 * logp, mask, kind).log() for kind in ("sequence", "product")]
    [tensor([[0.3000, 0.3000]]), tensor([[0.6000, 0.6000]])]
    """
    log_ratio_NL = logp - old_logp
    if ratio == "sequence":
        lengths_N1 = mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio_NL = (log_ratio_NL.sum(dim=1, keepdim=True) / lengths_N1).expand_as(log_ratio_NL)
    elif ratio == "product":
        log_ratio_NL = log_ratio_NL.sum(dim=1, keepdim=True).expand_as(log_ratio_NL)
    elif ratio != "token":
        raise ValueError(f"unknown ratio {ratio!r}: token, sequence or product")
    # e^80 fits float32; a larger ratio would be inf, and inf times a clipped gradient of 0 is NaN.
    return log_ratio_NL.clamp(max=80.0).exp()


def weighted_sum(loss_NL: torch.Tensor, mask: torch.Tensor, aggregate: str) -> torch.Tensor:
    """Σ weight · ℓ over the tokens of the mask."""
    if aggregate == "sequence":
        loss_NL = loss_NL / mask.sum(dim=1, keepdim=True).clamp(min=1)
    elif aggregate not in ("token", "constant"):
        raise ValueError(f"unknown aggregate {aggregate!r}: sequence, token or constant")
    return loss_NL.masked_fill(~mask, 0.0).sum()


def clipped_tokens(
    ratio: torch.Tensor, advantages: torch.Tensor, surrogate: str | Surrogate, limits: Limits
) -> dict[str, torch.Tensor]:
    """Tokens whose gradient the lower clip, the upper clip or the cap reduces."""
    none = torch.zeros_like(ratio, dtype=torch.bool)
    low, high, capped = none, none, none
    if surrogate == "clip":
        low = (ratio < 1 - limits.clip_low) & (advantages < 0)
        high = (ratio > 1 + limits.clip_high) & (advantages > 0)
        if limits.cap:
            capped = (ratio > limits.cap) & (advantages < 0)
    elif surrogate == "weight" and limits.cap:
        capped = (ratio > limits.cap) & (advantages != 0)
    return {"clip_low": low, "clip_high": high, "capped": capped}
