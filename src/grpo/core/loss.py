"""The clipped policy loss: PPO's (arXiv 1707.06347 eq. 7) as GRPO uses it (arXiv 2402.03300 eq. 3), per token.

    ρ = exp(logp − old)                    per token, or per sequence: exp(mean over its tokens) (GSPO, 2507.18071)
    ℓ = −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A) + β KL
    loss = Σ weight · ℓ / denominator      weight is 1/|o| for "sequence", else 1

The denominator is computed once per optimizer step over all its micro-batches and handed in, so how the work is
split or packed never changes a gradient. At ρ = 1 and β = 0 the derivative of Σ ℓ by every logp is exactly −A.
"""

from __future__ import annotations

import torch

from grpo.core.kl import kl_estimate
from grpo.core.statistics import LossStatistics


def denominator(lengths_N: torch.Tensor, aggregate: str, max_new_tokens: int) -> float:
    """What the summed loss of one optimizer step is divided by; zero-signal completions count, masks never shrink it.

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


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    denominator: float,
    ratio: str = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregate: str = "sequence",
    beta: float = 0.0,
    ref_logp: torch.Tensor | None = None,
    kl: str = "k3",
    entropy: torch.Tensor | None = None,
) -> tuple[torch.Tensor, LossStatistics]:
    """Loss of one micro-batch (its share of the optimizer step's loss) and the sums behind its metrics.

    All tensors are [N, L]: a row per completion, `mask` True where it has a token; `advantages` may also be [N], one
    per completion. `ref_logp` is needed where `beta` > 0; `entropy` is only measured.

    One completion of two tokens, A = 1: the first has ρ = e^0.5 > 1.2 and is clipped, the second has ρ = 1.

    >>> logp = torch.tensor([[-0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    >>> old, ones = torch.tensor([[-1.0, -1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    >>> loss, statistics = policy_loss(logp, old, ones, ones > 0, denominator=1.0)
    >>> loss.item()                                                # −(1.2 + 1.0) / 2
    -1.1
    >>> loss.backward()
    >>> logp.grad.tolist()                                         # the clipped token has no gradient left
    [[0.0, -0.5]]
    >>> statistics.metrics()["clip_high"]
    0.5
    """
    mask = mask.bool()
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(logp)
    # Padding may hold anything, NaN included, and 0 · NaN is NaN in a backward pass: it must not enter at all.
    logp, old_logp, advantages = (x.masked_fill(~mask, 0.0) for x in (logp, old_logp, advantages))
    lengths_N1 = mask.sum(dim=1, keepdim=True)
    log_ratio_NL = logp - old_logp
    if ratio == "sequence":
        log_ratio_NL = (log_ratio_NL.sum(dim=1, keepdim=True) / lengths_N1.clamp(min=1)).expand_as(log_ratio_NL)
    elif ratio != "token":
        raise ValueError(f"unknown ratio {ratio!r}: token or sequence")
    # e^80 still fits float32; beyond it the ratio would be inf, and inf times a clipped gradient of 0 is NaN.
    ratio_NL = log_ratio_NL.clamp(max=80.0).exp()

    clipped_NL = ratio_NL.clamp(1 - clip_low, 1 + clip_high)
    loss_NL = -torch.minimum(ratio_NL * advantages, clipped_NL * advantages)
    kl_NL = None
    if ref_logp is not None:
        kl_NL = kl_estimate(logp, ref_logp.masked_fill(~mask, 0.0), kl)
        if beta:
            loss_NL = loss_NL + beta * kl_NL
    elif beta:
        raise ValueError("beta > 0 needs ref_logp")

    if aggregate == "sequence":
        loss_NL = loss_NL / lengths_N1.clamp(min=1)
    elif aggregate not in ("token", "constant"):
        raise ValueError(f"unknown aggregate {aggregate!r}: sequence, token or constant")
    loss = loss_NL.masked_fill(~mask, 0.0).sum() / denominator

    statistics = LossStatistics.measure(
        loss, ratio_NL, advantages, mask, clip_low=clip_low, clip_high=clip_high, kl_NL=kl_NL, entropy_NL=entropy
    )
    return loss, statistics
