"""The bootstrapping problem: a critic learns partly from its own predictions, and at first these are wrong.

The predictions of a critic of `nano` after a few steps ship with the package; `scripts/make_critic.py` records them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch

from grpo.core import gae
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.chapters.attribution import example_of, pieces, true_value, valued_group
from grpo.lab.chapters.query import Query

LEARNING = RECORDINGS / "critic-learning.json"
PROMPT, SEED = "37+85+46=", 1
GAMMA, LAM = 1.0, 0.95
"""The defaults of PPO here."""


@lru_cache(maxsize=1)
def _recorded() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(LEARNING.read_text())
    return kept


def bootstrapping(query: Query) -> dict[str, Any]:
    """A critic after 0 to 80 steps, and the group's mean: their distance to the true value, and their advantages."""
    kept, group = _recorded(), valued_group(PROMPT, SEED)
    chosen = example_of(group)
    done, truth = group.completions[chosen], true_value(PROMPT, SEED, chosen)
    wrong = next(place for place, other in enumerate(group.completions) if not other.reward)
    true = [problem["true"] for problem in kept["problems"]]
    missed = group.completions[wrong]
    assert done.advantages is not None
    assert missed.advantages is not None
    return {
        "prompt": PROMPT,
        "tokens": pieces(done),
        "true_values": truth[:-1],
        "group_mean": fmean(other.reward or 0.0 for other in group.completions),
        "grpo": {"right": float(done.advantages[0]), "wrong": float(missed.advantages[0])},
        "wrong": missed.text,
        "problems": len(true),
        "restarts": kept["restarts"],
        "answers_per_step": kept["answers_per_step"],
        "group_distance": _distance([problem["group"] for problem in kept["problems"]], true),
        "critic": [
            {
                "steps": row["steps"],
                "values": row["tokens"][chosen],
                "distance": _distance(row["problems"], true),
                "right": gae_of(row["tokens"][chosen], done.reward or 0.0)[0],
                "wrong": gae_of(row["tokens"][wrong], 0.0)[0],
            }
            for row in kept["critic"]
        ],
    }


def gae_of(values: list[float], reward: float) -> list[float]:
    """Advantages of an answer whose only reward comes at its last token."""
    rewards_1L = torch.zeros(1, len(values))
    rewards_1L[0, -1] = reward
    advantages_1L, _ = gae(rewards_1L, torch.tensor([values]), GAMMA, LAM)
    return [float(advantage) for advantage in advantages_1L[0]]


def _distance(guesses: list[float], true: list[float]) -> float:
    return fmean(abs(guess - value) for guess, value in zip(guesses, true, strict=True))
