"""What one step looked like: sums that add up over micro-batches, and the metrics made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class LossStatistics:
    """Counts and sums over the tokens of one micro-batch; `+` joins micro-batches.

    Scalars stay tensors on their device until `metrics()`, so that measuring never makes the device wait.
    """

    loss: torch.Tensor
    tokens: torch.Tensor
    gradient_tokens: torch.Tensor
    """Tokens with a non-zero advantage."""
    clip_low: torch.Tensor
    clip_high: torch.Tensor
    """Tokens whose gradient the clip took away; a ratio outside the range with A on the other side is not clipped."""
    capped: torch.Tensor
    """Tokens whose ratio went beyond the cap, where there is one."""
    corrected: torch.Tensor | None
    """Tokens whose importance weight for a differing sampler was cut or left out."""
    kl: torch.Tensor | None
    entropy: torch.Tensor | None
    """None where it was not measured: a 0 would claim that the policy has not moved."""
    ratio_min: torch.Tensor
    ratio_max: torch.Tensor

    @classmethod
    @torch.no_grad()
    def measure(
        cls,
        loss: torch.Tensor,
        ratio_NL: torch.Tensor,
        advantages_NL: torch.Tensor,
        mask_NL: torch.Tensor,
        *,
        held: Mapping[str, torch.Tensor],
        corrected_NL: torch.Tensor | None = None,
        kl_NL: torch.Tensor | None,
        entropy_NL: torch.Tensor | None,
    ) -> LossStatistics:
        return cls(
            loss=loss.detach(),
            tokens=mask_NL.sum(),
            gradient_tokens=(mask_NL & (advantages_NL != 0)).sum(),
            **{name: (mask_NL & held_NL).sum() for name, held_NL in held.items()},
            corrected=None if corrected_NL is None else (mask_NL & corrected_NL).sum(),
            kl=None if kl_NL is None else kl_NL.masked_fill(~mask_NL, 0.0).sum(),
            entropy=None if entropy_NL is None else entropy_NL.masked_fill(~mask_NL, 0.0).sum(),
            ratio_min=ratio_NL.masked_fill(~mask_NL, torch.inf).amin(),
            ratio_max=ratio_NL.masked_fill(~mask_NL, -torch.inf).amax(),
        )

    def __add__(self, other: LossStatistics) -> LossStatistics:
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        joined: dict[str, Any] = {name: None if a is None or b is None else a + b for name, (a, b) in pairs.items()}
        joined["ratio_min"] = torch.minimum(self.ratio_min, other.ratio_min)
        joined["ratio_max"] = torch.maximum(self.ratio_max, other.ratio_max)
        return LossStatistics(**joined)

    def __getitem__(self, metric: str) -> float:
        return self.metrics()[metric]

    def metrics(self) -> dict[str, float]:
        tokens = max(float(self.tokens), 1.0)
        per_token = ("gradient_tokens", "clip_low", "clip_high", "capped", "corrected", "kl", "entropy")
        measured = {name: getattr(self, name) for name in per_token if getattr(self, name) is not None}
        shares = {name: float(total) / tokens for name, total in measured.items()}
        return {name: float(getattr(self, name)) for name in ("loss", "ratio_min", "ratio_max")} | shares


def reward_statistics(
    rewards_PG: torch.Tensor, advantages_PG: torch.Tensor, valid_PG: torch.Tensor
) -> dict[str, float]:
    """Mean and std of the valid rewards, NaN where there is none; std of their advantages; share of groups that teach
    nothing.

    >>> rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> reward_statistics(rewards, torch.tensor([[0.7, -0.7], [0.0, 0.0]]), torch.ones(2, 2) > 0)["zero_signal_groups"]
    0.5
    """
    rewards_N, advantages_N = rewards_PG[valid_PG], advantages_PG[valid_PG]
    spread_P = (advantages_PG != 0).any(dim=1)
    return {
        "reward_mean": float(rewards_N.mean()),
        "reward_std": float(rewards_N.std()) if len(rewards_N) > 1 else 0.0 if len(rewards_N) else float("nan"),
        "advantage_std": float(advantages_N.std()) if len(advantages_N) > 1 else 0.0,
        "zero_signal_groups": float((~spread_P).float().mean()),
        "unscored": float((~valid_PG).float().mean()),
    }
