"""Signal of a group: exact probability of a group without signal, and exact variance of its gradient estimate.

The policy here has two answers, one right (reward 1) and one wrong (0), and one logit; p is the right one's chance. A
group's estimate of the gradient is the mean of A · ∂log p(answer)/∂logit; its mean and variance run through all groups.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from grpo.config import Config
from grpo.config.schema import validate
from grpo.core import group_advantages, zero_signal_chance
from grpo.core.explain.tabular import true_gradient
from grpo.errors import GrpoError
from grpo.lab.chapters.query import Query, number, whole

SIZES = (2, 4, 8, 16, 32, 64)
BUDGET = 64
"""Budget of completions, equal for all group sizes."""
ESTIMATORS = {
    "none": ("reward itself", None),
    "known": ("true mean", None),
    "mean": ("group mean", ("mean", "none")),
    "others": ("mean of the others", ("leave_one_out", "none")),
    "std": ("group mean ÷ std", ("mean", "group_std")),
}


def group_estimate(pass_rate: float, group_size: int, estimator: str) -> tuple[float, float]:
    """(mean, variance) of one group's estimate of the gradient, over all groups of that size.

    Two completions, p = 1/2, group mean: half of the groups have equal rewards and estimate 0; the others have A = ±1/2
    and slopes ±1/2 and estimate 1/4. The mean is 1/8, the variance 1/32 − 1/64.

    >>> group_estimate(0.5, 2, "mean")
    (0.125, 0.015625)
    """
    mean = square = 0.0
    for right in range(group_size + 1):
        chance = math.comb(group_size, right) * pass_rate**right * (1 - pass_rate) ** (group_size - right)
        rewards_1G = torch.tensor([[1.0] * right + [0.0] * (group_size - right)], dtype=torch.float64)
        _, settings = ESTIMATORS[estimator]
        if settings is None:
            advantages_1G = rewards_1G - (pass_rate if estimator == "known" else 0.0)
        else:
            advantages_1G = group_advantages(rewards_1G, baseline=settings[0], scale=settings[1])
        # The slope of log p(answer) by the right answer's logit is 1 − p for the right one and −p for the other.
        estimate = float((advantages_1G * (rewards_1G - pass_rate)).mean())
        mean, square = mean + chance * estimate, square + chance * estimate**2
    return mean, max(0.0, square - mean**2)


def estimates(query: Query) -> dict[str, Any]:
    """Every estimator with the same budget of completions, split into groups of each size."""
    pass_rate = number(query, "p", 0.5, 0.01, 0.99)
    logit = math.log(pass_rate / (1 - pass_rate))
    ends = torch.tensor([logit, 0.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    slope = float(true_gradient(*ends)[0])
    rows = []
    for size in SIZES:
        for name, (words, _) in ESTIMATORS.items():
            mean, variance = group_estimate(pass_rate, size, name)
            deviation = math.sqrt(variance / (BUDGET // size))
            rows.append(
                {
                    "group_size": size,
                    "estimator": name,
                    "words": words,
                    "mean": mean,
                    "of_true": mean / slope,
                    "deviation": deviation,
                    "signal_to_noise": mean / deviation if deviation else None,
                }
            )
    return {"p": pass_rate, "true": slope, "budget": BUDGET, "rows": rows}


def sizes(query: Query) -> dict[str, Any]:
    """Signal and baseline error of each group size for a problem of this difficulty."""
    pass_rate = number(query, "p", 0.5, 0.0, 1.0)
    rows = []
    for size in SIZES:
        zero_signal = zero_signal_chance(pass_rate, size)
        rows.append(
            {
                "group_size": size,
                "zero_signal": zero_signal,
                "baseline_error": math.sqrt(pass_rate * (1 - pass_rate) / size),
                "groups": BUDGET // size,
                "groups_with_signal": BUDGET // size * (1 - zero_signal),
            }
        )
    defaults = {name: getattr(Config, name) for name in ("prompts_per_step", "group_size")}
    return {"p": pass_rate, "budget": BUDGET, "rows": rows, "defaults": defaults}


def group_of_one(query: Query) -> dict[str, Any]:
    """Advantages of a group of one and of two, with each kind of standard deviation."""
    reward = number(query, "r", 1.0, 0.0, 1.0)
    one_G, two_G = torch.tensor([reward], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    try:
        validate(Config(model="nano", group_size=1))
        refusal = ""
    except GrpoError as error:
        refusal = str(error)
    return {
        "reward": reward,
        "mean": float(one_G.mean()),
        "sample_std": sample_std([reward]),
        "population_std": float(one_G.std(correction=0)),
        "advantage": float(group_advantages(one_G[None])[0, 0]),
        "refusal": refusal,
        "conventions": [{"group_size": size, "factor": _factor(size)} for size in (2, 8, 64)],
        "two": {
            "sample": float(group_advantages(two_G[None])[0, 0]),
            "population": float((two_G[0] - two_G.mean()) / two_G.std(correction=0)),
        },
    }


def _factor(size: int) -> float:
    """Population advantage divided by sample advantage, for any rewards."""
    rewards_G = torch.arange(size, dtype=torch.float64)
    return float(rewards_G.std() / rewards_G.std(correction=0))


def sample_std(rewards: list[float]) -> float | None:
    """Sample standard deviation, over n − 1; None for one number, where it is 0/0.

    >>> sample_std([1.0]), sample_std([1.0, 0.0])
    (None, 0.7071067811865476)
    """
    if len(rewards) < 2:
        return None
    return float(torch.tensor(rewards, dtype=torch.float64).std())


def chance(query: Query) -> dict[str, Any]:
    """The share of groups without signal by pass rate: p^G + (1 − p)^G."""
    pass_rate, size = number(query, "p", 0.5, 0.0, 1.0), whole(query, "g", 8, 2, 64)
    grid = [place / 100 for place in range(101)]
    return {
        "p": pass_rate,
        "group_size": size,
        "zero_signal": zero_signal_chance(pass_rate, size),
        "some_right": 1 - (1 - pass_rate) ** size,
        "curve": [{"p": at, "zero_signal": zero_signal_chance(at, size)} for at in grid],
    }
