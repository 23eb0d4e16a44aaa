"""Advantages of a group with rewards set by the reader, by every formula; conventions of the std."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from grpo.core import group_advantages, reward_statistics
from grpo.lab.chapters import shipped
from grpo.lab.chapters.query import Query, number, numbers, whole, word
from grpo.lab.chapters.story import work_in_words

WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "grpo": partial(group_advantages, baseline="mean", scale="group_std"),
    "mean_only": partial(group_advantages, baseline="mean", scale="none"),
    "leave_one_out": partial(group_advantages, baseline="leave_one_out", scale="none"),
    "batch_std": partial(group_advantages, baseline="mean", scale="batch_std"),
    "batch": partial(group_advantages, baseline="batch", scale="batch_std"),
}
"""GRPO, Dr. GRPO, RLOO, REINFORCE++ with a group baseline, and the whole batch as one group."""
SIX = (1.0, 1.0, 0.0, 0.0, 0.0, 0.5)
EARLIEST = 5


@cache
def example() -> tuple[int, int]:
    """Step and group of an early sum of the shipped run with three right of eight."""
    for step, groups in enumerate(shipped.groups()[EARLIEST:], start=EARLIEST):
        for index, group in enumerate(groups):
            if "+" in group["prompt"] and sum(shipped.rewards()[step][index]) == 3:
                return step, index
    raise AssertionError("the shipped run has such a group")


def own_group(query: Query) -> dict[str, Any]:
    """The advantages of these rewards by every formula; the rest of the batch is a recorded step."""
    recorded = word(query, "of", "run", ("run", "six")) == "run"
    step, index = example()
    group = shipped.groups()[step][index]
    texts = [done["text"] for done in group["completions"]] if recorded else []
    start = shipped.rewards()[step][index] if recorded else list(SIX)
    rewards = numbers(query, "rewards", start, 0, 1, least=1, most=16)
    rewards_1G = torch.tensor([rewards], dtype=torch.float64)
    rewards_PG, valid_PG = _with_batch(rewards)
    found = {name: way(rewards_PG, valid_PG)[0, : len(rewards)] for name, way in WAYS.items()}
    several = len(rewards) > 1
    return {
        "prompt": group["prompt"] if recorded else "",
        "answer": group["answer"] if recorded else "",
        "work": work_in_words(group["prompt"]) if recorded else [],
        "place": [step, index],
        "texts": texts[: len(rewards)],
        "start": start,
        "rewards": rewards,
        "mean": rewards_1G.mean().item(),
        "std": rewards_1G.std().item() if several else None,
        "std_population": rewards_1G.std(correction=0).item(),
        "advantages": {name: advantages.tolist() for name, advantages in found.items()},
        "statistics": reward_statistics(rewards_1G, found["grpo"][None], torch.ones_like(rewards_1G) > 0),
        "batch": {"groups": len(rewards_PG), "mean": rewards_PG[valid_PG].mean().item()},
    }


def _with_batch(rewards: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The group first, then the other groups of the recorded step; shorter rows are not valid to their end."""
    step, index = example()
    rows = [rewards, *(row for place, row in enumerate(shipped.rewards()[step]) if place != index)]
    most = max(map(len, rows))
    rewards_PG = torch.tensor([row + [0.0] * (most - len(row)) for row in rows], dtype=torch.float64)
    valid_PG = torch.tensor([[place < len(row) for place in range(most)] for row in rows])
    return rewards_PG, valid_PG


def same_reward(query: Query) -> dict[str, Any]:
    """The advantage of one reward in a weak and in a strong group."""
    reward = number(query, "reward", 0.7, 0, 1)
    groups = {"weak": [0.0, 0.1, 0.2, 0.3, 0.1, 0.0, 0.2], "strong": [1.0, 0.9, 0.8, 0.9, 1.0, 0.9, 0.8]}
    return {
        name: {
            "rewards": [reward, *others],
            "advantages": group_advantages(torch.tensor([[reward, *others]], dtype=torch.float64))[0].tolist(),
        }
        for name, others in groups.items()
    }


def std_conventions(query: Query) -> list[dict[str, Any]]:
    """The advantage of one right answer among G, for several G, by either std without the added constant;
    by torch's sample std, and by `group_advantages`."""
    most = whole(query, "most", 8, 2, 64)
    rows = []
    for size in range(1, most + 1):
        rewards_1G = torch.zeros(1, size, dtype=torch.float64)
        rewards_1G[0, 0] = 1.0
        right = rewards_1G[0, 0] - rewards_1G.mean()
        sample = math.nan if size == 1 else (right / rewards_1G.std()).item()
        population = math.nan if size == 1 else (right / rewards_1G.std(correction=0)).item()
        rows.append(
            {
                "group_size": size,
                "population": population,
                "sample": sample,
                "trainer": group_advantages(rewards_1G)[0, 0].item(),
            }
        )
    return rows


def two_prompts(query: Query) -> dict[str, Any]:
    """Advantages of an easy and a hard prompt by every formula, for given numbers of right answers and rewards."""
    first, second = whole(query, "easy", 7, 0, 8), whole(query, "hard", 1, 0, 8)
    pay = number(query, "pay", 1.0, 0.1, 10)
    rewards_PG = torch.zeros(2, 8, dtype=torch.float64)
    rewards_PG[0, :first] = pay
    rewards_PG[1, :second] = 1.0
    found = {}
    for name, way in WAYS.items():
        advantages_PG = way(rewards_PG)
        found[name] = {
            "right": [advantages_PG[0, 0].item() if first else None, advantages_PG[1, 0].item() if second else None],
            "wrong": [
                advantages_PG[0, -1].item() if first < 8 else None,
                advantages_PG[1, -1].item() if second < 8 else None,
            ],
            "push": advantages_PG.abs().sum(dim=1).tolist(),
        }
    return {"right_answers": [first, second], "pay": [pay, 1.0], "ways": found}


def push_by_difficulty(query: Query) -> list[dict[str, Any]]:
    """A group with k of G right: its two advantages, and the sum of their sizes, with and without the std."""
    size = whole(query, "g", 8, 2, 64)
    rewards_KG = (torch.arange(size) < torch.arange(size + 1)[:, None]).double()
    ways = {name: WAYS[name](rewards_KG) for name in ("grpo", "mean_only")}
    return [
        {
            "right": k,
            "above": ways["grpo"][k, 0].item() if k else None,
            "below": ways["grpo"][k, -1].item() if k < size else None,
            "push": ways["grpo"][k].abs().sum().item(),
            "push_without_std": ways["mean_only"][k].abs().sum().item(),
        }
        for k in range(size + 1)
    ]
