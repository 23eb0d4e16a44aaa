"""Computed answers to questions: why groups, group size, noisy judges, and untrained models."""

from __future__ import annotations

from typing import Any

import torch

from grpo.core import group_advantages, process_advantages, reward_statistics, zero_signal_chance
from grpo.core.explain import tabular
from grpo.lab.chapters import shipped
from grpo.lab.chapters.distance import SHOWN_EVERY, STEPS, drift, reference_logits, rewards_of_answers
from grpo.lab.chapters.query import Query, number, whole
from grpo.lab.chapters.relatives import group_estimates, quality


def _recorded_rewards() -> torch.Tensor:
    """[steps, prompts, completions] of the first steps of the shipped run, while prompts still differ."""
    return torch.tensor(shipped.rewards()[:8], dtype=torch.float64)


def why_groups(query: Query) -> dict[str, Any]:
    """Share of the reward's variance explained by the prompt in a recorded run."""
    rewards_SPG = _recorded_rewards()
    variances = {
        baseline: float(
            torch.stack(
                [group_advantages(rewards_PG, baseline=baseline, scale="none").var() for rewards_PG in rewards_SPG]
            ).mean()
        )
        for baseline in ("batch", "mean")
    }
    raw = float(torch.stack([rewards_PG.var() for rewards_PG in rewards_SPG]).mean())
    spread = float(rewards_SPG.mean(dim=2).std(dim=1).mean())
    return {
        "reward_variance": raw,
        "batch": variances["batch"],
        "group": variances["mean"],
        "by_prompt": 1 - variances["mean"] / variances["batch"],
        "prompt_spread": spread,
        "steps": len(rewards_SPG),
    }


def group_sizes(query: Query) -> list[dict[str, Any]]:
    """G = 2, 8 and 64 at one pass rate: share of groups without signal, noise and bias."""
    true_V = tabular.true_gradient(reference_logits(), rewards_of_answers())
    pass_rate = float(reference_logits().softmax(dim=0) @ rewards_of_answers())
    rows = []
    for size in (2, 8, 64):
        centred = quality(group_estimates(size, baseline="mean", scale="none"), true_V)
        scaled = quality(group_estimates(size, baseline="mean", scale="group_std"), true_V)
        rows.append(
            {
                "g": size,
                "zero_signal": zero_signal_chance(pass_rate, size),
                "along": centred["along"],
                "expected_along": 1 - 1 / size,
                "noise": centred["noise"],
                "angle": scaled["angle"],
            }
        )
    return rows


def across_the_batch(query: Query) -> dict[str, Any]:
    """An easy and a hard prompt, normalised within groups or over the batch."""
    size = whole(query, "g", 8, 2, 16)
    easy, hard = (whole(query, name, default, 0, size) for name, default in (("easy", size - 1), ("hard", 1)))
    rewards_PG = torch.tensor([[1.0] * right + [0.0] * (size - right) for right in (easy, hard)], dtype=torch.float64)
    found = {}
    for label, baseline, scale in (
        ("group", "mean", "group_std"),
        ("batch std", "mean", "batch_std"),
        ("batch mean and std", "batch", "batch_std"),
    ):
        advantages_PG = group_advantages(rewards_PG, baseline=baseline, scale=scale)
        found[label] = {"easy": advantages_PG[0].tolist(), "hard": advantages_PG[1].tolist()}
    return {"rewards": rewards_PG.tolist(), "advantages": found}


def open_ended(query: Query) -> dict[str, Any]:
    """Mean cosine of one group's push with the true push, for judges with random error."""
    size = whole(query, "g", 8, 2, 32)
    true_V = tabular.true_gradient(reference_logits(), rewards_of_answers())
    rows = []
    for noise in (0.0, 0.2, 0.5, 1.0, 2.0):
        estimates_MV = group_estimates(size, baseline="mean", scale="group_std", noise=noise, draws=2000)
        moved_MV = estimates_MV[estimates_MV.norm(dim=1) > 0]
        cosines_M = torch.nn.functional.cosine_similarity(moved_MV, true_V.expand_as(moved_MV), dim=1)
        rows.append(
            {"noise": noise, "cosine": float(cosines_M.mean()), "zero_signal": 1 - len(moved_MV) / len(estimates_MV)}
        )
    return {"g": size, "rows": rows}


def imperfect_reward(query: Query) -> dict[str, Any]:
    """A checker that also accepts a wrong answer: reward and true accuracy over 200 steps, with and without β."""
    beta = number(query, "beta", 0.2, 0.0, 2.0)
    lines = {name: drift(value, "k3", 1, proxy=True)[0] for name, value in (("0", 0.0), ("beta", beta))}
    return {
        "beta": beta,
        "lines": {
            name: {"paid": line["reward"], "true": line["true_reward"], "steps": list(range(0, STEPS + 1, SHOWN_EVERY))}
            for name, line in lines.items()
        },
    }


def no_warm_start(query: Query) -> dict[str, Any]:
    """Expected number of groups until one has signal, at a pass rate and for an untrained model."""
    size = whole(query, "g", 8, 2, 64)
    vocabulary, answer_tokens = 19, 4  # `nano`: three digits and the end
    untaught = vocabulary**-answer_tokens
    taught = float(_recorded_rewards()[0].mean())
    rate = number(query, "rate", taught, 0.0, 1.0)

    def wait(pass_rate: float) -> float | None:
        heard = 1 - zero_signal_chance(pass_rate, size)
        return 1 / heard if heard > 0 else None

    return {
        "g": size,
        "rate": rate,
        "wait": wait(rate),
        "untaught": untaught,
        "untaught_wait": wait(untaught),
        "taught": taught,
        "taught_wait": wait(taught),
    }


def per_token(query: Query) -> dict[str, Any]:
    """A completion with the second of three steps wrong, and one without errors, with both kinds of rewards."""
    outcome_1G = group_advantages(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    steps = process_advantages([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], [[3, 7, 11], [3, 7, 11]], [12, 12])
    return {
        "outcome": [[float(advantage)] * 12 for advantage in outcome_1G[0]],
        "process": [tokens.tolist() for tokens in steps],
    }


def any_task(query: Query) -> list[dict[str, Any]]:
    """Advantages of rewards from sums, code, words and puzzles: only the rewards matter."""
    rows = []
    for subject, rewards in (
        ("sums, right or wrong", [1.0, 0.0, 0.0, 1.0]),
        ("programs, share of tests passed", [1.0, 0.4, 0.0, 0.8]),
        ("format, share of JSON keys present", [0.5, 1.0, 1.0, 0.25]),
        ("a judge's scores from 1 to 10", [7.0, 6.0, 8.0, 6.5]),
    ):
        rewards_1G = torch.tensor([rewards], dtype=torch.float64)
        advantages_1G = group_advantages(rewards_1G)
        statistics = reward_statistics(rewards_1G, advantages_1G, torch.ones_like(rewards_1G) > 0)
        rows.append(
            {
                "subject": subject,
                "rewards": rewards,
                "advantages": advantages_1G[0].tolist(),
                "mean": statistics["reward_mean"],
            }
        )
    return rows
