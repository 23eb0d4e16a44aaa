"""Sums and counts of the loss that add up over micro-batches, and the metrics computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

SIGNAL_SHARES = ("clip_low", "clip_high", "capped", "corrected")
"""Metrics that are shares of the tokens with a non-zero advantage."""


@dataclass(frozen=True, eq=False)
class LossStatistics:
    """Counts and sums over the tokens of one micro-batch; `+` adds micro-batches.

    Values stay tensors on their device until `metrics()`, so that no micro-batch waits for the device.
    loss = policy_loss + kl_loss − entropy_bonus.
    """

    loss: torch.Tensor
    policy_loss: torch.Tensor
    """The surrogate's share of the loss."""
    kl_loss: torch.Tensor | None
    """The share of β·KL; None at β = 0."""
    entropy_bonus: torch.Tensor | None
    """Entropy bonus, subtracted from the loss; None without one."""
    tokens: torch.Tensor
    gradient_tokens: torch.Tensor
    """Tokens with a non-zero advantage: the four counts below are among these."""
    clip_low: torch.Tensor
    clip_high: torch.Tensor
    """Tokens whose gradient is 0 because of the clip; a ratio outside the range with A of the other sign is not."""
    capped: torch.Tensor
    """Tokens with a ratio above the cap."""
    corrected: torch.Tensor | None
    """Tokens whose importance weight was above correction_cap; None without a correction."""
    kl: torch.Tensor | None
    """None without a reference."""
    entropy: torch.Tensor | None
    """None if it was not computed."""
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
        parts: Mapping[str, torch.Tensor],
        clipped: Mapping[str, torch.Tensor],
        corrected_NL: torch.Tensor | None = None,
        kl_NL: torch.Tensor | None,
        entropy_NL: torch.Tensor | None,
    ) -> LossStatistics:
        """Statistics of one micro-batch; `parts` are shares of the loss, `clipped` the tokens whose gradient the clip
        or cap reduces."""
        signal_NL = mask_NL & (advantages_NL != 0)
        return cls(
            loss=loss.detach(),
            policy_loss=parts["policy_loss"],
            kl_loss=parts.get("kl_loss"),
            entropy_bonus=parts.get("entropy_bonus"),
            tokens=mask_NL.sum(),
            gradient_tokens=signal_NL.sum(),
            **{name: (signal_NL & clipped_NL).sum() for name, clipped_NL in clipped.items()},
            corrected=None if corrected_NL is None else (signal_NL & corrected_NL).sum(),
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its values in main memory: another process may not have this one's GPU."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuilt, ({name: None if value is None else value.cpu() for name, value in values.items()},)

    def __getitem__(self, metric: str) -> float:
        return self.metrics()[metric]

    def metrics(self) -> dict[str, float]:
        """Losses as they are, SIGNAL_SHARES per token with a non-zero advantage, the rest per token."""
        divisors = dict.fromkeys(("gradient_tokens", "kl", "entropy"), max(float(self.tokens), 1.0))
        divisors |= dict.fromkeys(SIGNAL_SHARES, max(float(self.gradient_tokens), 1.0))
        divisors |= dict.fromkeys(("loss", "policy_loss", "kl_loss", "entropy_bonus", "ratio_min", "ratio_max"), 1.0)
        measured = {name: getattr(self, name) for name in divisors if getattr(self, name) is not None}
        return {name: float(value) / divisors[name] for name, value in measured.items()}


def _rebuilt(values: Mapping[str, Any]) -> LossStatistics:
    return LossStatistics(**values)


def reward_statistics(
    rewards_PG: torch.Tensor, advantages_PG: torch.Tensor, valid_PG: torch.Tensor
) -> dict[str, float]:
    """Mean and std of the valid rewards, NaN without any; std of their advantages; share of groups without signal.

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
