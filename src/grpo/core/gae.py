"""Generalized advantage estimation (arXiv 1506.02438), and the critic's clipped loss as PPO has it in practice."""

from __future__ import annotations

import torch

from grpo.core.advantage import STD_EPS, correction, ranges


def gae(
    rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), all [N, L]: A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t; return = A + V.

    `rewards` are received after a token, `values` are predicted before it. After the last token V is 0. `mask` is True
    where a row has a token.

    Two tokens, reward 1 at the end, V = 0.5 throughout: δ = 0 (0.5 − 0.5), then 0.5 (1 − 0.5).

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    >>> [x.tolist() for x in gae(rewards, values, gamma=1.0, lam=0.5)]
    [[[0.25, 0.5]], [[0.75, 1.0]]]
    """
    mask = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.bool()
    rewards, values = rewards.masked_fill(~mask, 0.0), values.masked_fill(~mask, 0.0)
    advantages_NL = torch.zeros_like(rewards)
    ahead_N = value_ahead_N = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        surprise_N = rewards[:, t] + gamma * value_ahead_N - values[:, t]
        ahead_N = (surprise_N + gamma * lam * ahead_N).masked_fill(~mask[:, t], 0.0)
        value_ahead_N = values[:, t]
        advantages_NL[:, t] = ahead_N
    return advantages_NL, advantages_NL + values


def whiten(
    advantages: torch.Tensor, mask: torch.Tensor, *, std: str = "sample", std_eps: float = STD_EPS
) -> torch.Tensor:
    """Advantages [N, L] with mean 0 and std 1 over the tokens of the mask, or all 0 if they are equal; 0 outside it.

    >>> whiten(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.tensor([[True, True], [True, False]]))
    tensor([[-1.0000,  0.0000],
            [ 1.0000,  0.0000]])
    """
    values_N = advantages[mask]
    if len(values_N) < 2 or (values_N.isfinite().all() and not ranges(values_N[None], mask[mask][None]) > 0):
        return torch.zeros_like(advantages)
    whitened = (advantages - values_N.mean()) / (values_N.std(correction=correction(std)) + std_eps)
    return whitened.masked_fill(~mask, 0.0)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Σ ½ max((V − R)², (V_clip − R)²) over all [N, L]. V_clip is V, limited to within `clip` of the value before the
    update if `clip` is above 0.

    >>> new, old, returns = torch.tensor([[0.5]]), torch.tensor([[0.0]]), torch.tensor([[1.0]])
    >>> value_loss(new, old, returns, returns > 0, clip=0.2)                        # ½ (0.2 − 1)²; its gradient is 0
    tensor(0.3200)
    """
    mask = mask.bool()
    values, old_values, returns = (x.masked_fill(~mask, 0.0) for x in (values, old_values, returns))
    errors_NL = (values - returns) ** 2
    if not clip:
        return errors_NL.sum() / 2
    clipped_NL = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(errors_NL, (clipped_NL - returns) ** 2).sum() / 2
