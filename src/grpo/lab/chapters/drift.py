"""A tabular policy trained with exact gradients: drift from the reference, and convergence."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

from grpo.core.explain.tabular import expected_estimate, expected_kl_gradient, expected_reward, kl, true_gradient
from grpo.lab.chapters.query import Query, number, whole, word
from grpo.lab.trials.recorded import recorded_arms

CHANCES = (0.35, 0.25, 0.2, 0.15, 0.05)
REWARDS = (0.0, 0.2, 0.4, 0.1, 1.0)
THREE = (0.6, 0.3, 0.1)
EACH = 4
LATE = 50


def drift(query: Query) -> dict[str, Any]:
    """200 exact steps with a KL penalty: forward and reverse KL, and the reward."""
    beta, lr = number(query, "beta", 0.04, 0, 2), number(query, "lr", 0.5, 0.01, 2)
    kind = word(query, "kl", "k3", ("k1", "k2", "k3"))
    steps = whole(query, "steps", 200, 1, 400)
    ref_V = torch.tensor(CHANCES, dtype=torch.float64).log()
    rewards_V = torch.tensor(REWARDS, dtype=torch.float64)
    logits_V, rows = ref_V.clone(), []
    for step in range(steps + 1):
        if step % EACH == 0 or step == steps:
            rows.append(
                {
                    "step": step,
                    "reverse": float(kl(logits_V, ref_V)),
                    "forward": float(kl(ref_V, logits_V)),
                    "reward": float(expected_reward(logits_V, rewards_V)),
                }
            )
        pull_V = expected_kl_gradient(logits_V, ref_V, kind) if beta else torch.zeros_like(logits_V)
        logits_V = logits_V + lr * (true_gradient(logits_V, rewards_V) - beta * pull_V)
    return {"beta": beta, "rows": rows, "probabilities": logits_V.softmax(0).tolist(), "start": list(CHANCES)}


def recorded_drift(query: Query) -> list[dict[str, Any]]:
    """KL divergence and reward of every arm of the recorded trial over its last 50 steps, and the earlier KL."""
    rows = []
    for arm in recorded_arms("kl-over-beta"):
        kl_points, rewards = arm["bands"]["kl"], arm["bands"]["reward_mean"]
        rows.append(
            {
                "label": arm["label"],
                "kl": fmean(point["mean"] for point in kl_points[-LATE:]),
                "kl_middle": fmean(point["mean"] for point in kl_points[LATE : 2 * LATE]),
                "reward": fmean(point["mean"] for point in rewards[-LATE:]),
                "accuracy": arm["accuracy"]["after"]["mean"],
            }
        )
    return rows


def convergence(query: Query) -> dict[str, Any]:
    """Exact gradient ascent with the true gradient, with the group's mean, and with the group's std."""
    size, lr = whole(query, "g", 4, 2, 5), number(query, "lr", 0.5, 0.01, 2)
    rewards_V = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    ways = {
        "true gradient": lambda logits_V: true_gradient(logits_V, rewards_V),
        "group mean": lambda logits_V: expected_estimate(logits_V, rewards_V, size),
        "group mean and std": lambda logits_V: expected_estimate(logits_V, rewards_V, size, scale="group_std"),
    }
    found = {}
    for name, gradient in ways.items():
        logits_V, rows = torch.tensor(THREE, dtype=torch.float64).log(), []
        for step in range(201):
            if step % 5 == 0:
                rows.append({"step": step, "reward": float(expected_reward(logits_V, rewards_V))})
            logits_V = logits_V + lr * gradient(logits_V)
        found[name] = rows
    return {"group_size": size, "best": 1.0, "ways": found}
