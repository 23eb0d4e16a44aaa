"""Advantages of turns: by hand, and against the formulas of GiGPO (arXiv 2505.10978) written out in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import mean, stdev

import pytest
import torch

from grpo.core import group_advantages, turn_advantages

EPS = 1e-4


def gigpo(
    rewards: Sequence[Sequence[float]],
    states: Sequence[Sequence[str]],
    *,
    omega: float = 1.0,
    gamma: float = 0.95,
    divide: bool = True,
) -> list[list[float]]:
    """Equations 3 and 5 to 8 of the paper, one after another. F_norm is the standard deviation, or 1."""

    def normalised(value: float, group: Sequence[float]) -> float:
        if len(group) == 1 or len(set(group)) == 1:
            return 0.0
        return (value - mean(group)) / ((stdev(group) + EPS) if divide else 1.0)

    episode_returns = [sum(row) for row in rewards]  # eq. 3: R(τ) = Σ r_t
    step_returns = [  # eq. 5: R_t = Σ_k γ^(k − t) r_k
        [sum(gamma ** (k - t) * row[k] for k in range(t, len(row))) for t in range(len(row))] for row in rewards
    ]
    groups: dict[str, list[float]] = {}  # eq. 6: the turns of each anchor state
    for row, of_episode in zip(step_returns, states, strict=True):
        for value, state in zip(row, of_episode, strict=True):
            groups.setdefault(state, []).append(value)
    return [  # eq. 7 and 8: A = A_E + ω · A_S
        [
            normalised(total, episode_returns) + omega * normalised(value, groups[state])
            for value, state in zip(row, of_episode, strict=True)
        ]
        for total, row, of_episode in zip(episode_returns, step_returns, states, strict=True)
    ]


@pytest.mark.parametrize("divide", [True, False])
def test_the_papers_formulas_on_random_episodes(divide: bool) -> None:
    dice = random.Random(7)
    for _ in range(30):
        lengths = [dice.randint(1, 5) for _ in range(6)]
        rewards = [[dice.choice([0.0, 0.0, 0.25, 1.0]) for _ in range(length)] for length in lengths]
        # Few states, so that they are met on several paths and twice in an episode.
        states = [["start", *(dice.choice("abc") for _ in range(length - 1))] for length in lengths]
        omega, gamma = dice.choice([0.5, 1.0, 2.0]), dice.choice([1.0, 0.9, 0.5])
        scale = "group_std" if divide else "none"
        ours = turn_advantages(rewards, states, weight=omega, gamma=gamma, scale=scale)
        reference = gigpo(rewards, states, omega=omega, gamma=gamma, divide=divide)
        for found, expected in zip(ours, reference, strict=True):
            assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_by_hand() -> None:
    # Episodes: 1 after two turns, 0 after two, 1 at once. Rewards 1, 0, 1: mean 2/3, std √(1/3).
    # Returns with γ = 0.5. First turns: 0.5, 0, 1, mean 0.5, std 0.5. Second turns, both in state "x": 1 and 0.
    found = turn_advantages([[0.0, 1.0], [0.0, 0.0], [1.0]], [["", "x"], ["", "x"], [""]], gamma=0.5)
    third = 1 / 3 / (math.sqrt(1 / 3) + EPS)
    half, pair = 0.5 / (0.5 + EPS), 0.5 / (math.sqrt(0.5) + EPS)
    assert found[0].tolist() == pytest.approx([third, third + pair])
    assert found[1].tolist() == pytest.approx([-2 * third - half, -2 * third - pair])
    assert found[2].tolist() == pytest.approx([third + half])


@pytest.mark.parametrize("scale", ["group_std", "none"])
def test_of_one_turn_it_is_grpo_twice(scale: str) -> None:
    rewards = [0.3, 1.0, 0.0, 0.0, 0.75]
    once = group_advantages(torch.tensor([rewards], dtype=torch.float64), scale=scale)[0]
    for weight in (0.0, 1.0, 2.5):
        found = turn_advantages([[reward] for reward in rewards], [[()]] * 5, weight=weight, scale=scale)
        assert [float(turn) for turn in found] == pytest.approx(((1 + weight) * once).tolist(), abs=1e-6)


def test_no_spread_is_exactly_zero_and_an_empty_group_has_no_turns() -> None:
    found = turn_advantages([[0.1], [0.1], [0.1]], [["a"], ["a"], ["a"]])
    assert [turn.tolist() for turn in found] == [[0.0], [0.0], [0.0]]
    assert turn_advantages([], []) == []


def test_turns_are_normalised_in_their_group_only() -> None:
    with pytest.raises(ValueError, match="unknown scale 'batch_std' of turns: group_std or none"):
        turn_advantages([[1.0], [0.0]], [["a"], ["a"]], scale="batch_std")
