"""Errors of published GRPO code, each next to the trainer's result for the same numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from grpo.core import group_advantages, policy_loss, token_terms
from grpo.core.explain.tabular import expected_kl_gradient
from grpo.lab.chapters.query import Query, number, whole


def listed_clip_fraction(ratio: torch.Tensor, advantage: torch.Tensor, epsilon: float) -> torch.Tensor:
    """As published: a token is clipped where the clipped objective divided by A differs from the ratio."""
    clipped_objective = ratio.clamp(1 - epsilon, 1 + epsilon) * advantage
    return (ratio != clipped_objective / advantage).float()


def clip_fractions(query: Query) -> dict[str, Any]:
    """Published and true clip fraction for several ratios and advantages."""
    epsilon = number(query, "epsilon", 0.2, 0.01, 0.9)
    cases = [(1.0, 0.0), (1.0, 0.7), (1.5, 1.0), (1.5, -1.0), (0.5, 1.0), (0.5, -1.0), (1.1, 0.3)]
    rows = []
    for ratio, advantage in cases:
        row = torch.tensor([math.log(ratio)], dtype=torch.float64)
        terms = token_terms(
            row, torch.zeros_like(row), torch.tensor([advantage], dtype=torch.float64), denominator=1.0,
            clip_low=epsilon, clip_high=epsilon,
        )  # fmt: skip
        listed = listed_clip_fraction(torch.tensor(ratio), torch.tensor(advantage), epsilon)
        rows.append(
            {
                "ratio": ratio,
                "advantage": advantage,
                "listed": listed.item(),
                "trainer": float(terms.clip[0] != 0),
                "push": terms.push[0].item(),
            }
        )
    batch = torch.tensor([row["listed"] for row in rows])
    trainer = torch.tensor([row["trainer"] for row in rows])
    return {"epsilon": epsilon, "rows": rows, "listed": batch.mean().item(), "trainer": trainer.mean().item()}


def penalty_gradient(query: Query) -> dict[str, Any]:
    """Expected gradients of k1 (log π − log π_ref, the published KL penalty), k2 and k3."""
    shift = number(query, "shift", 1.0, 0.0, 3.0)
    ref_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    logits_V = ref_V + torch.tensor([shift, 0.0, 0.0], dtype=torch.float64)
    return {kind: expected_kl_gradient(logits_V, ref_V, kind).tolist() for kind in ("k1", "k2", "k3")}


def sequence_ratio(query: Query) -> dict[str, Any]:
    """The product ratio of a completion after a small change of every token."""
    tokens, percent = whole(query, "tokens", 200, 1, 2000), number(query, "percent", 0.5, 0.01, 20)
    per_token = 1 + percent / 100
    return {
        "tokens": tokens,
        "percent": percent,
        "token_ratio": per_token,
        "sequence_ratio": math.exp(tokens * math.log(per_token)),
        "tokens_to_clip": math.log(1.2) / math.log(per_token),
    }


def steps_per_sample(query: Query) -> dict[str, Any]:
    """Ratios after one optimizer step per completion, as published, and after one step
    on the whole batch of eight, from the same policy with the same learning rate."""
    lr, epochs = number(query, "lr", 0.5, 0.01, 3), whole(query, "epochs", 4, 1, 8)
    drawn_N = torch.tensor([0, 1, 0, 2, 3, 0, 1, 3])
    rewards_N = torch.tensor([1.0, 0, 1, 0, 0, 1, 0, 0], dtype=torch.float64)
    advantages_N = group_advantages(rewards_N[None])[0]
    start_V = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()

    def trained(batches: list[slice]) -> dict[str, Any]:
        logits_V = start_V.clone().requires_grad_()
        optimizer, updates, clipped = torch.optim.SGD([logits_V], lr=lr), 0, 0.0
        old_N1 = start_V[drawn_N][:, None]
        for _ in range(epochs):
            for batch in batches:
                logp_N1 = logits_V.log_softmax(0)[drawn_N][batch][:, None]
                loss, statistics = policy_loss(
                    logp_N1, old_N1[batch], advantages_N[batch], torch.ones_like(logp_N1) > 0, denominator=len(logp_N1)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                updates, clipped = updates + 1, clipped + statistics["clip_high"] + statistics["clip_low"]
        ratio_V = (logits_V.detach().log_softmax(0) - start_V).exp()
        return {
            "updates": updates,
            "ratio_max": ratio_V.max().item(),
            "ratio_min": ratio_V.min().item(),
            "clipped": clipped / updates,
            "probabilities": logits_V.detach().softmax(0).tolist(),
        }

    return {
        "lr": lr,
        "epochs": epochs,
        "each": trained([slice(i, i + 1) for i in range(len(drawn_N))]),
        "batch": trained([slice(None)]),
    }


def mean_advantage(query: Query) -> dict[str, Any]:
    """The mean advantage, which is always 0, over random groups."""
    generator = torch.Generator().manual_seed(whole(query, "seed", 1, 0, 9999))
    rewards_PG = torch.rand(64, 8, dtype=torch.float64, generator=generator)
    advantages_PG = group_advantages(rewards_PG)
    return {"groups": 64, "mean": advantages_PG.mean().item(), "std": advantages_PG.std().item()}


def modes(query: Query) -> dict[str, Any]:
    """Old log-probabilities in evaluation mode, new ones in training mode: with dropout the ratio is not 1 before
    the first update."""
    chance = number(query, "dropout", 0.1, 0.0, 0.5)
    layers = torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Dropout(chance), torch.nn.Linear(64, 8)
    net = torch.nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.random.fork_rng():
        for weight in net.parameters():
            weight.normal_(std=0.2, generator=generator)
        inputs = torch.randn(256, 16, generator=generator)
        old = net.eval()(inputs).log_softmax(-1)[:, 0]
        torch.manual_seed(0)  # dropout takes no generator
        ratio = (net.train()(inputs).log_softmax(-1)[:, 0] - old).exp()
    return {
        "dropout": chance,
        "ratio_min": ratio.min().item(),
        "ratio_max": ratio.max().item(),
        "outside": ((ratio - 1).abs() > 0.2).float().mean().item(),
    }
