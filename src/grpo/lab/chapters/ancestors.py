"""Baselines from REINFORCE to GRPO on a policy over three answers: exact bias and variance.

A group's estimate of the gradient is the mean of A ∇log p over its answers. All V^G groups are enumerated, so
the estimate's mean and variance and the true gradient are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from grpo.core import group_advantages
from grpo.core.explain.tabular import angle, expected_reward, kl, trpo_step, true_gradient
from grpo.lab.chapters.query import Query, number, numbers, whole

Credit = Callable[[torch.Tensor, float], torch.Tensor]
"""Rewards of all groups [M, G] and the expected reward -> advantages [M, G]."""
PROBABILITIES = (0.5, 0.3, 0.2)
REWARDS = (0.0, 0.2, 1.0)
MOST_SIZE = 8
MAX_KL = 0.01


@dataclass(frozen=True)
class Ancestor:
    name: str
    year: int
    paper: str
    baseline: str
    credit: Credit


def _critic(error: float) -> Credit:
    return lambda rewards_MG, value: rewards_MG - (value + error)


def _constant_baseline(b: float) -> Credit:
    return lambda rewards_MG, value: rewards_MG - b


def family(critic_error: float) -> dict[str, Ancestor]:
    """The algorithms by year; `critic_error` is the error of the critic's value."""
    critic = _critic(critic_error)
    return {
        "reinforce": Ancestor(
            "REINFORCE", 1992, "Williams 1992, Machine Learning 8", "none", lambda rewards_MG, value: rewards_MG
        ),
        "actor_critic": Ancestor(
            "Actor–critic", 2000, "Konda and Tsitsiklis 2000", "a critic's value of the prompt", critic
        ),
        "trpo": Ancestor(
            "TRPO", 2015, "Schulman et al. 2015, arXiv:1502.05477", "a critic's value; the step bounded by KL", critic
        ),
        "ppo": Ancestor(
            "PPO", 2017, "Schulman et al. 2017, arXiv:1707.06347", "a critic's value; the ratio clipped", critic
        ),
        "rloo": Ancestor(
            "RLOO",
            2019,
            "Kool et al. 2019; for language models Ahmadian et al. 2024, arXiv:2402.14740",
            "the mean of the others in the group",
            lambda rewards_MG, value: group_advantages(rewards_MG, baseline="leave_one_out", scale="none"),
        ),
        "grpo": Ancestor(
            "GRPO",
            2024,
            "Shao et al. 2024, arXiv:2402.03300",
            "the group's mean, divided by its std",
            lambda rewards_MG, value: group_advantages(rewards_MG, baseline="mean", scale="group_std"),
        ),
        "dr_grpo": Ancestor(
            "Dr. GRPO",
            2025,
            "Liu et al. 2025, arXiv:2503.20783",
            "the group's mean",
            lambda rewards_MG, value: group_advantages(rewards_MG, baseline="mean", scale="none"),
        ),
    }


def moments(
    logits_V: torch.Tensor, rewards_V: torch.Tensor, group_size: int, credit: Credit
) -> tuple[torch.Tensor, float]:
    """(mean, total variance) of a group's estimate, over all V^G groups.

    >>> even, reward = torch.zeros(2).double(), torch.tensor([1.0, 0.0]).double()
    >>> moments(even, reward, 2, lambda rewards_MG, value: rewards_MG)[0]               # no baseline: not biased
    tensor([ 0.2500, -0.2500], dtype=torch.float64)
    """
    p_V = logits_V.softmax(dim=0)
    groups_MG = torch.tensor(list(itertools.product(range(len(p_V)), repeat=group_size)))
    chance_M = p_V[groups_MG].prod(dim=1)
    advantages_MG = credit(rewards_V[groups_MG], float(expected_reward(logits_V, rewards_V)))
    slope_VV = torch.eye(len(p_V), dtype=p_V.dtype) - p_V  # row a: the gradient of log p(a) by the logits
    estimates_MV = (advantages_MG[..., None] * slope_VV[groups_MG]).mean(dim=1)
    mean_V = chance_M @ estimates_MV
    return mean_V, float(chance_M @ ((estimates_MV - mean_V) ** 2).sum(dim=1))


def ancestors(query: Query) -> dict[str, Any]:
    """Direction, length and variance of each algorithm's gradient estimate."""
    logits_V, rewards_V = example(query)
    size = whole(query, "g", 4, 2, MOST_SIZE)
    true_V = true_gradient(logits_V, rewards_V)
    rows = {}
    for key, each in family(number(query, "critic", 0.0, -1, 1)).items():
        mean_V, variance = moments(logits_V, rewards_V, size, each.credit)
        length = float(mean_V.norm())
        rows[key] = {
            "name": each.name,
            "year": each.year,
            "paper": each.paper,
            "baseline": each.baseline,
            "mean": mean_V.tolist(),
            "length": length / float(true_V.norm()),
            "cosine": torch.nn.functional.cosine_similarity(mean_V, true_V, dim=0).item(),
            "angle": angle(mean_V, true_V),
            "bias": float((mean_V - true_V).norm()),
            "variance": variance,
            # Variance of the estimate rescaled to the true length, as a learning rate would.
            "noise": variance**0.5 / length,
        }
    return {
        "probabilities": logits_V.softmax(dim=0).tolist(),
        "rewards": rewards_V.tolist(),
        "group_size": size,
        "groups": len(rewards_V) ** size,
        "expected_reward": float(expected_reward(logits_V, rewards_V)),
        "true_gradient": true_V.tolist(),
        "ancestors": rows,
        "trpo": _trust_region(logits_V, rewards_V),
    }


def example(query: Query) -> tuple[torch.Tensor, torch.Tensor]:
    chances = torch.tensor(numbers(query, "p", PROBABILITIES, 0.01, 1, least=3, most=3), dtype=torch.float64)
    rewards_V = torch.tensor(numbers(query, "r", REWARDS, 0, 1, least=3, most=3), dtype=torch.float64)
    if rewards_V.min() == rewards_V.max():
        rewards_V[0] += 1e-3  # equal rewards would have no gradient to compare with
    return (chances / chances.sum()).log(), rewards_V


def _trust_region(logits_V: torch.Tensor, rewards_V: torch.Tensor) -> dict[str, Any]:
    moved_V = trpo_step(logits_V, rewards_V, MAX_KL)
    return {
        "max_kl": MAX_KL,
        "kl": float(kl(logits_V, moved_V)),
        "probabilities": moved_V.softmax(dim=0).tolist(),
        "expected_reward": float(expected_reward(moved_V, rewards_V)),
    }


def by_group_size(query: Query) -> list[dict[str, Any]]:
    """The three group baselines for every G: the mean gives (1 − 1/G) of the gradient, leave-one-out all of it, and
    the std changes its direction."""
    logits_V, rewards_V = example(query)
    true_V = true_gradient(logits_V, rewards_V)
    members = family(0.0)
    rows = []
    for size in range(2, MOST_SIZE + 1):
        row: dict[str, Any] = {"group_size": size, "expected": 1 - 1 / size}
        for key in ("dr_grpo", "rloo", "grpo"):
            mean_V, _ = moments(logits_V, rewards_V, size, members[key].credit)
            row[key] = {
                "length": float(mean_V.norm() / true_V.norm()),
                "cosine": torch.nn.functional.cosine_similarity(mean_V, true_V, dim=0).item(),
            }
        rows.append(row)
    return rows


def baseline_term(query: Query) -> dict[str, Any]:
    """Why a baseline adds no bias: E[b ∇log p] = b Σ p ∇log p = 0 for any b."""
    logits_V, rewards_V = example(query)
    b = number(query, "b", 0.5, -2, 2)
    p_V = logits_V.softmax(dim=0)
    slope_VV = torch.eye(len(p_V), dtype=p_V.dtype) - p_V
    mean_V, variance = moments(logits_V, rewards_V, 1, _constant_baseline(b))
    variances = [
        {"b": at, "variance": moments(logits_V, rewards_V, 1, _constant_baseline(at))[1]}
        for at in [round(-1 + 0.05 * i, 2) for i in range(61)]
    ]
    return {
        "b": b,
        "slopes": slope_VV.tolist(),
        "probabilities": p_V.tolist(),
        "term": (b * (p_V @ slope_VV)).tolist(),
        "mean": mean_V.tolist(),
        "true_gradient": true_gradient(logits_V, rewards_V).tolist(),
        "variance": variance,
        "variances": variances,
        "value": float(expected_reward(logits_V, rewards_V)),
    }
