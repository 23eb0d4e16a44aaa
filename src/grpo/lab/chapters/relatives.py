"""Comparison of methods on a tabular policy, and with the planner."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from grpo.config.presets import PRESETS
from grpo.core import group_advantages
from grpo.core.explain import tabular
from grpo.lab.chapters.distance import reference_logits, rewards_of_answers
from grpo.lab.chapters.query import Query, number, whole
from grpo.model.plan import PRECISIONS, Needs, Work, flops, memory_of, needs, typical_shape

DRAWS = 4000


def group_estimates(
    group_size: int, *, baseline: str, scale: str, noise: float = 0.0, offset: float = 0.0, draws: int = DRAWS
) -> torch.Tensor:
    """Many groups' estimates of the gradient [M, V]: the mean of A ∇log p, each group drawn from the policy.

    `baseline` none: the reward itself. `noise`: std of a judge's error on every reward. `offset`: added to each.
    """
    logits_V, rewards_V = reference_logits(), rewards_of_answers()
    p_V = logits_V.softmax(dim=0)
    generator = torch.Generator().manual_seed(1)
    answers_MG = torch.multinomial(p_V, draws * group_size, True, generator=generator).view(draws, group_size)
    rewards_MG = rewards_V[answers_MG] + offset
    if noise:
        rewards_MG = rewards_MG + noise * torch.randn(rewards_MG.shape, generator=generator, dtype=torch.float64)
    if baseline != "none":
        rewards_MG = group_advantages(rewards_MG, baseline=baseline, scale=scale)
    slope_VV = torch.eye(len(p_V), dtype=torch.float64) - p_V
    return (rewards_MG[..., None] * slope_VV[answers_MG]).mean(dim=1)


def quality(estimates_MV: torch.Tensor, true_V: torch.Tensor) -> dict[str, float]:
    """Length of an estimate's mean along the true gradient, and its noise relative to that length."""
    mean_V = estimates_MV.mean(dim=0)
    along = float(mean_V @ true_V / (true_V @ true_V))
    noise = float((estimates_MV - mean_V).norm(dim=1).square().mean().sqrt() / mean_V.norm())
    return {"along": along, "noise": noise, "angle": tabular.angle(mean_V, true_V)}


@lru_cache(maxsize=8)
def _estimators(group_size: int, offset: float) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    true_V = tabular.true_gradient(reference_logits(), rewards_of_answers())
    kinds = {
        "REINFORCE, no baseline": ("none", "none"),
        "RLOO": ("leave_one_out", "none"),
        "Dr. GRPO": ("mean", "none"),
        "GRPO": ("mean", "group_std"),
    }
    found = {
        name: quality(group_estimates(group_size, baseline=baseline, scale=scale, offset=offset), true_V)
        for name, (baseline, scale) in kinds.items()
    }
    return tuple((name, tuple(values.items())) for name, values in found.items())


def methods(query: Query) -> dict[str, Any]:
    """PPO, DPO, GRPO and REINFORCE: models, memory and FLOPs by the planner; measured noise of one group."""
    size = f"{number(query, 'size', 7.0, 0.1, 500.0):g}B"
    shape, group_size = typical_shape(size), whole(query, "g", 8, 2, 64)
    offset = number(query, "lift", 0.0, 0.0, 10.0)
    work = Work(prompts=16, group_size=group_size, prompt_tokens=256, new_tokens=1024)
    noise = {name: dict(values)["noise"] for name, values in _estimators(group_size, offset)}
    rows = []
    for name, preset, key in (
        ("PPO", "ppo", ""),
        ("GRPO", "grpo", "GRPO"),
        ("REINFORCE", "reinforce", "REINFORCE, no baseline"),
    ):
        needed = needs(PRESETS[preset].settings)
        rows.append({"method": name, **_costs(shape, work, needed), "noise": noise.get(key), "samples": True})
    # DPO uses given pairs: a policy, a reference, no rollout.
    dpo = _costs(shape, work, Needs(reference=True, critic=False))
    found = memory_of(shape, work, Needs(reference=True, critic=False), PRECISIONS["bfloat16"], on_gpu=True)
    dpo["peak"] -= found.components["keys/values"]
    dpo["flops"] -= flops(shape, work, Needs(reference=True, critic=False))["rollout"]
    rows.append({"method": "DPO", **dpo, "noise": None, "samples": False})
    return {
        "size": size,
        "g": group_size,
        "rows": rows,
        "estimators": [{"name": n, **dict(v)} for n, v in _estimators(group_size, offset)],
    }


def _costs(shape: Any, work: Work, needed: Needs) -> dict[str, Any]:
    found = memory_of(shape, work, needed, PRECISIONS["bfloat16"], on_gpu=True)
    return {
        "critic": needed.critic,
        "reference": needed.reference,
        "peak": found.peak,
        "flops": sum(flops(shape, work, needed).values()),
    }


def one_step(query: Query) -> dict[str, Any]:
    """From the same policy: one TRPO step at its KL bound, one policy gradient step, and DPO's optimum."""
    max_kl, beta = number(query, "max_kl", 0.05, 0.001, 1.0), number(query, "beta", 0.5, 0.05, 5.0)
    logits_V, rewards_V = reference_logits(), rewards_of_answers()
    trpo_V = tabular.trpo_step(logits_V, rewards_V, max_kl)
    gradient_V = logits_V + tabular.true_gradient(logits_V, rewards_V)
    best_V = logits_V.log_softmax(dim=0) + rewards_V / beta
    rows = {"start": logits_V, "trpo": trpo_V, "gradient": gradient_V, "dpo": best_V}
    return {
        "max_kl": max_kl,
        "beta": beta,
        "rows": {
            name: {
                "reward": float(tabular.expected_reward(after_V, rewards_V)),
                "kl": float(tabular.kl(logits_V, after_V)),
                "policy": after_V.softmax(dim=0).tolist(),
            }
            for name, after_V in rows.items()
        },
        "dpo_slope": float(tabular.dpo_gradient(best_V, logits_V, rewards_V, beta).norm()),
    }
