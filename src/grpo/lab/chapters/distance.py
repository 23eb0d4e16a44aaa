"""The KL divergence: three estimates from one token, their gradients as a loss, and drift over training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch

from grpo.core import group_advantages, kl_estimate, policy_loss
from grpo.core.explain import tabular
from grpo.lab.chapters.query import Query, number, numbers, whole, word

KINDS = ("k1", "k2", "k3")
LOSS_KINDS = (*KINDS, "k3_ratio")


def kl_of_a_token(query: Query) -> dict[str, Any]:
    """Each estimate, and the derivative of β times it by the token's log-probability."""
    policy, reference = number(query, "policy", 0.5, 0.001, 0.999), number(query, "reference", 0.3, 0.001, 0.999)
    beta = number(query, "beta", 0.04, 0.0, 2.0)
    grid_K = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64)
    difference = torch.tensor([policy / reference], dtype=torch.float64).log()
    rows = {}
    for kind in KINDS:
        value_K, slope_K = _value_and_slope(grid_K, kind)
        value, slope = (float(x) for x in _value_and_slope(difference, kind))
        rows[kind] = {
            "value": value,
            "slope": slope,
            "penalty": beta * value,
            "pull": 0.0 - beta * slope,
            "curve": {"value": value_K.tolist(), "slope": slope_K.tolist()},
        }
    return {"difference": float(difference), "beta": beta, "grid": grid_K.tolist(), "kinds": rows}


def _value_and_slope(difference_K: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and slope by logp of an estimate, at this difference logp − ref."""
    leaf_K = difference_K.clone().requires_grad_()
    value_K = kl_estimate(leaf_K, torch.zeros_like(leaf_K), kind)
    return value_K.detach(), torch.autograd.grad(value_K.sum(), leaf_K)[0]


def kl_of_bars(query: Query) -> dict[str, Any]:
    """Exact KL of a policy and a reference over a few words, set by the reader."""
    reference = numbers(query, "reference", (0.4, 0.3, 0.2, 0.1), 0.001, 1.0, least=2, most=8)
    policy = numbers(query, "policy", (0.05, 0.15, 0.2, 0.6), 0.001, 1.0, least=len(reference), most=len(reference))
    p_V, q_V = (torch.tensor(bars, dtype=torch.float64) for bars in (policy, reference))
    p_V, q_V = p_V / p_V.sum(), q_V / q_V.sum()
    logits_V, ref_V = p_V.log(), q_V.log()
    true = {
        "reverse": _slope(lambda x_V: tabular.kl(x_V, ref_V), logits_V),
        "forward": _slope(lambda x_V: tabular.kl(ref_V, x_V), logits_V),
    }
    return {
        "policy": p_V.tolist(),
        "reference": q_V.tolist(),
        "reverse": float(tabular.kl(logits_V, ref_V)),
        "forward": float(tabular.kl(ref_V, logits_V)),
        "reverse_parts": (p_V * (p_V / q_V).log()).tolist(),
        "forward_parts": (q_V * (q_V / p_V).log()).tolist(),
        "gradients": {name: gradient_V.tolist() for name, gradient_V in true.items()},
        "estimates": {kind: _estimate(logits_V, ref_V, kind, true) for kind in LOSS_KINDS},
    }


def _estimate(logits_V: torch.Tensor, ref_V: torch.Tensor, kind: str, true: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Mean and std of an estimate over the policy's samples, and its expected gradient as a loss."""
    p_V = logits_V.softmax(dim=0)
    value_V = kl_estimate(logits_V.log_softmax(dim=0), ref_V.log_softmax(dim=0), kind.removesuffix("_ratio"))
    mean = p_V @ value_V
    gradient_V = tabular.expected_kl_gradient(logits_V, ref_V, kind)
    size, largest = float(gradient_V.norm()), max(float(one_V.norm()) for one_V in true.values())
    nothing = size <= 1e-9 * max(1.0, largest)
    matches = [name for name, one_V in true.items() if largest > 1e-9 and torch.allclose(gradient_V, one_V, atol=1e-9)]
    return {
        "values": value_V.tolist(),
        "mean": float(mean),
        "spread": float((p_V @ (value_V - mean) ** 2).sqrt()),
        "gradient": gradient_V.tolist(),
        "size": 0.0 if nothing else size,
        "matches": "nothing" if nothing else " and ".join(matches) or "neither",
    }


def _slope(function: Any, at_V: torch.Tensor) -> torch.Tensor:
    leaf_V = at_V.clone().requires_grad_()
    return torch.autograd.grad(function(leaf_V), leaf_V)[0]


ANSWERS_OF_A_PROBLEM = 12
RIGHT = 3
STEPS, SHOWN_EVERY, LEARNING_RATE = 200, 4, 0.5
GROUPS, GROUP_SIZE = 4, 8


def reference_logits() -> torch.Tensor:
    """Logits of twelve answers, the most likely first; the right one has a probability of about 0.1."""
    return -0.35 * torch.arange(ANSWERS_OF_A_PROBLEM, dtype=torch.float64)


def rewards_of_answers() -> torch.Tensor:
    """1 for the right answer, else 0."""
    rewards_V = torch.zeros(ANSWERS_OF_A_PROBLEM, dtype=torch.float64)
    rewards_V[RIGHT] = 1.0
    return rewards_V


def train_tabular(rewards_V: torch.Tensor, *, beta: float, kl: str, seeds: Sequence[int]) -> torch.Tensor:
    """Logits [STEPS + 1, seeds, answers] before and after each GRPO step of a tabular policy.

    Groups are drawn, compared and pushed by the functions that train language models; only the model is small. Seeds
    are rows of one batch, and do not touch one another.
    """
    ref_V = reference_logits()
    logits_SV = ref_V.repeat(len(seeds), 1)
    noise = [torch.Generator().manual_seed(seed) for seed in seeds]
    draws = GROUPS * GROUP_SIZE
    path = [logits_SV]
    for _ in range(STEPS):
        p_SV = logits_SV.softmax(dim=1)
        answers_SN = torch.stack(
            [torch.multinomial(p_V, draws, True, generator=g) for p_V, g in zip(p_SV, noise, strict=True)]
        )
        advantages_PG = group_advantages(rewards_V[answers_SN].view(-1, GROUP_SIZE))
        leaf_SV = logits_SV.clone().requires_grad_()
        logp_N1 = leaf_SV.log_softmax(dim=1).gather(1, answers_SN).view(-1, 1)
        loss, _ = policy_loss(
            logp_N1,
            logp_N1.detach(),
            advantages_PG.flatten(),
            torch.ones_like(logp_N1) > 0,
            denominator=draws,
            beta=beta,
            ref_logp=ref_V.log_softmax(dim=0)[answers_SN].view(-1, 1),
            kl=kl,
        )
        [gradient_SV] = torch.autograd.grad(loss, leaf_SV)
        logits_SV = logits_SV - LEARNING_RATE * gradient_SV
        path.append(logits_SV)
    return torch.stack(path)


@lru_cache(maxsize=256)
def drift(beta: float, kl: str, seeds: int, proxy: bool = False) -> list[dict[str, list[float]]]:
    """For each seed: KL to the reference in both directions and expected reward after each step, all exact.

    `proxy`: a wrong answer, more likely at the start, also gets the full reward.
    """
    true_V, rewards_V = rewards_of_answers(), rewards_of_answers()
    if proxy:
        rewards_V[1] = 1.0
    ref_V = reference_logits()
    shown_TSV = train_tabular(rewards_V, beta=beta, kl=kl, seeds=range(1, seeds + 1))[::SHOWN_EVERY]
    return [
        {
            "reverse": [float(tabular.kl(logits_V, ref_V)) for logits_V in path_TV],
            "forward": [float(tabular.kl(ref_V, logits_V)) for logits_V in path_TV],
            "reward": [float(tabular.expected_reward(logits_V, rewards_V)) for logits_V in path_TV],
            "true_reward": [float(tabular.expected_reward(logits_V, true_V)) for logits_V in path_TV],
        }
        for path_TV in shown_TSV.transpose(0, 1)
    ]


def drift_over_steps(query: Query) -> dict[str, Any]:
    """The reader's β and β = 0, one line per seed."""
    beta = number(query, "beta", 0.04, 0.0, 2.0)
    kl = word(query, "kl", "k3", LOSS_KINDS)
    seeds = whole(query, "seeds", 3, 1, 5)
    betas = list(dict.fromkeys([0.0, beta]))
    lines = {b: drift(b, kl if b else "k3", seeds) for b in betas}
    return {
        "beta": beta,
        "kl": kl,
        "steps": list(range(0, STEPS + 1, SHOWN_EVERY)),
        "lines": [
            {"beta": b, "seed": seed, **line} for b, runs in lines.items() for seed, line in enumerate(runs, start=1)
        ],
        "ends": [
            {"beta": b, **{name: fmean(run[name][-1] for run in runs) for name in ("reverse", "forward", "reward")}}
            for b, runs in lines.items()
        ],
        "ceiling": float(-reference_logits().log_softmax(dim=0)[RIGHT]),
    }
