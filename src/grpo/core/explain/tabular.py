"""A policy over a few answers, one logit each, with exact expectations: all groups are enumerated, none is sampled.

TRPO and DPO are implemented only here, for comparison with the algorithms that train language models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch

from grpo.core.advantage import group_advantages
from grpo.core.kl import kl_term


def expected_reward(logits_V: torch.Tensor, rewards_V: torch.Tensor) -> torch.Tensor:
    return logits_V.softmax(dim=0) @ rewards_V


def true_gradient(logits_V: torch.Tensor, rewards_V: torch.Tensor) -> torch.Tensor:
    """Gradient of the expected reward by the logits: p (r − E r).

    >>> true_gradient(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64))
    tensor([ 0.2500, -0.2500], dtype=torch.float64)
    """
    p_V = logits_V.softmax(dim=0)
    return p_V * (rewards_V - p_V @ rewards_V)


def expected_estimate(
    logits_V: torch.Tensor, rewards_V: torch.Tensor, group_size: int, *, baseline: str = "mean", scale: str = "none"
) -> torch.Tensor:
    """Expectation of a group's gradient estimate, the mean of A ∇log p, over all V^G groups.

    >>> logits, rewards = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> expected_estimate(logits, rewards, 2)                     # half of the true gradient: 1 − 1/G
    tensor([ 0.1250, -0.1250], dtype=torch.float64)
    """
    p_V = logits_V.softmax(dim=0)
    groups_MG = torch.tensor(list(itertools.product(range(len(p_V)), repeat=group_size)))
    advantages_MG = group_advantages(rewards_V[groups_MG], baseline=baseline, scale=scale)
    slope_VV = torch.eye(len(p_V), dtype=p_V.dtype) - p_V  # row a: the gradient of log p(a) by the logits
    estimates_MV = (advantages_MG[..., None] * slope_VV[groups_MG]).mean(dim=1)
    return p_V[groups_MG].prod(dim=1) @ estimates_MV


def kl(logits_V: torch.Tensor, ref_logits_V: torch.Tensor) -> torch.Tensor:
    """KL(policy ‖ reference), the reverse KL; with the arguments swapped, the forward one."""
    logp_V, ref_logp_V = logits_V.log_softmax(dim=0), ref_logits_V.log_softmax(dim=0)
    return (logp_V.exp() * (logp_V - ref_logp_V)).sum()


def expected_kl_gradient(logits_V: torch.Tensor, ref_logits_V: torch.Tensor, kind: str) -> torch.Tensor:
    """Expected gradient of a KL estimate used as a loss on samples of the policy.

    `kind` as in `kl_term`; the value of the ratio is 1.
    """

    def loss(logits: torch.Tensor) -> torch.Tensor:
        logp_V = logits.log_softmax(dim=0)
        ratio_V = (logp_V - logp_V.detach()).exp()
        return logp_V.exp().detach() @ kl_term(logp_V, ref_logits_V.log_softmax(dim=0), ratio_V, kind)

    return _gradient(loss, logits_V)


def angle(a_V: torch.Tensor, b_V: torch.Tensor) -> float:
    """Angle between two vectors, in degrees; the arc cosine would lose half of the digits of a small one.

    >>> round(angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])), 4)
    45.0
    """
    a_V, b_V = (torch.nn.functional.normalize(vector_V, dim=0) for vector_V in (a_V, b_V))
    return math.degrees(2 * math.atan2(float((a_V - b_V).norm()), float((a_V + b_V).norm())))


def trpo_step(logits_V: torch.Tensor, rewards_V: torch.Tensor, max_kl: float) -> torch.Tensor:
    """The logits after one step of trust region policy optimization (arXiv 1502.05477), with exact expectations.

    The natural gradient, scaled so that KL(old ‖ new) is `max_kl` to second order, then shortened until the exact KL is
    and the expected reward rises. Where we differ: the natural gradient is exact; there are no conjugate gradients.
    """
    if rewards_V.min() == rewards_V.max():
        return logits_V
    # The Fisher matrix times r is the gradient, so its pseudo-inverse times the gradient is r − mean(r).
    direction_V = rewards_V - rewards_V.mean()
    curvature = true_gradient(logits_V, rewards_V) @ direction_V
    step_V = torch.sqrt(2 * max_kl / curvature) * direction_V
    for _ in range(30):
        moved_V = logits_V + step_V
        if kl(logits_V, moved_V) <= max_kl and expected_reward(moved_V, rewards_V) > expected_reward(
            logits_V, rewards_V
        ):
            return moved_V
        step_V = 0.9 * step_V
    return logits_V


def dpo_loss(logits_V: torch.Tensor, ref_logits_V: torch.Tensor, rewards_V: torch.Tensor, beta: float) -> torch.Tensor:
    """Direct preference optimization (arXiv 2305.18290 eq. 7) in expectation: both answers of a pair drawn from the
    reference, one preferred as their rewards say (Bradley–Terry). Its minimum is p ∝ reference · exp(reward / β).
    """
    margin_V = beta * (logits_V.log_softmax(dim=0) - ref_logits_V.log_softmax(dim=0))
    ref_V = ref_logits_V.softmax(dim=0)
    pairs_VV = ref_V[:, None] * ref_V[None, :]
    preferred_VV = torch.sigmoid(rewards_V[:, None] - rewards_V[None, :])
    gain_VV = torch.nn.functional.logsigmoid(margin_V[:, None] - margin_V[None, :])
    return -2 * (pairs_VV * preferred_VV * gain_VV).sum()  # either of the two may come first


def dpo_gradient(
    logits_V: torch.Tensor, ref_logits_V: torch.Tensor, rewards_V: torch.Tensor, beta: float
) -> torch.Tensor:
    return _gradient(lambda logits: dpo_loss(logits, ref_logits_V, rewards_V, beta), logits_V)


def _gradient(loss: Callable[[torch.Tensor], torch.Tensor], at_V: torch.Tensor) -> torch.Tensor:
    leaf_V = at_V.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf_V), leaf_V)[0]
