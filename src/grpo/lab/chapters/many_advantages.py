"""Advantages of a whole run: their distribution, and the effect of a baseline per prompt."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean, pstdev
from typing import Any

import torch

from grpo.core import group_advantages
from grpo.lab.chapters import shipped
from grpo.lab.chapters.query import Query, number, whole

WIDTH = 0.25
"""Of a bin. Bins are centred on multiples of it, so that advantages of 0 have a bin of their own."""
REACH = 3.0


def histogram(query: Query) -> dict[str, Any]:
    """The recorded advantages of the first `steps` steps, and a normal distribution with the same mean and std."""
    steps = whole(query, "steps", len(shipped.groups()), 1, len(shipped.groups()))
    values = [done["advantage"] for step in shipped.groups()[:steps] for group in step for done in group["completions"]]
    middle, spread = fmean(values), pstdev(values)
    edges = [WIDTH * (i - 0.5) - REACH for i in range(round(2 * REACH / WIDTH) + 2)]
    bins = [
        {
            "low": low,
            "high": low + WIDTH,
            "share": sum(low <= value < low + WIDTH for value in values) / len(values),
            "normal": _normal(low + WIDTH, middle, spread) - _normal(low, middle, spread),
        }
        for low in edges[:-1]
    ]
    distinct = Counter(round(value, 3) + 0.0 for value in values)
    return {
        "steps": steps,
        "values": len(values),
        "mean": middle,
        "std": spread,
        "zero": distinct[0.0] / len(values),
        "distinct": [{"value": value, "count": count} for value, count in sorted(distinct.items())],
        "bins": bins,
        "kurtosis": fmean(((value - middle) / spread) ** 4 for value in values) if spread else None,
    }


def _normal(x: float, middle: float, spread: float) -> float:
    """The share of a normal distribution below x."""
    return 0.5 * (1 + math.erf((x - middle) / (spread * math.sqrt(2)))) if spread else float(x > middle)


def two_values(query: Query) -> list[dict[str, Any]]:
    """The two advantages of a group with rewards of 0 and 1, for every number of right answers."""
    size = whole(query, "g", 8, 2, 64)
    rewards_KG = (torch.arange(size) < torch.arange(1, size)[:, None]).double()
    advantages_KG = group_advantages(rewards_KG)
    return [
        {"right": k, "above": row[0].item(), "below": row[-1].item()} for k, row in enumerate(advantages_KG, start=1)
    ]


def group_mean(query: Query) -> dict[str, Any]:
    """The group's mean as an estimate of the prompt's value: its distribution and error."""
    p, size = number(query, "p", 0.5, 0, 1), whole(query, "g", 8, 1, 64)
    chances = [math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)]
    return {
        "p": p,
        "group_size": size,
        "chances": [{"mean": k / size, "chance": chance} for k, chance in enumerate(chances)],
        "expected": sum(k / size * chance for k, chance in enumerate(chances)),
        "std": math.sqrt(sum((k / size - p) ** 2 * chance for k, chance in enumerate(chances))),
    }


def own_baseline(query: Query) -> dict[str, Any]:
    """Variance of recorded rewards around one baseline for all prompts, and around each prompt's baseline."""
    first = whole(query, "steps", 10, 1, len(shipped.groups()))
    rows = [row for step in shipped.rewards()[:first] for row in step]
    everything = [reward for row in rows for reward in row]
    overall = fmean(everything)
    by_prompt = [[reward - fmean(row) for reward in row] for row in rows]
    return {
        "steps": first,
        "prompts": len(rows),
        "mean": overall,
        "around_one": fmean((reward - overall) ** 2 for reward in everything),
        "around_own": fmean(centred**2 for row in by_prompt for centred in row),
        "between": fmean((fmean(row) - overall) ** 2 for row in rows),
    }
