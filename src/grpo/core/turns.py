"""Advantages of the turns of episodes: turns in the same state are compared with each other (GiGPO, arXiv 2505.10978).

An episode's advantage compares its whole reward with its group's. A turn's advantage compares its return, the
discounted sum of the rewards from it on, with those of all turns of the group that began in the same state. Both have
the same normalisation, and A = A_episode + weight · A_turn.
Where we differ: by default the sample std, and eps 1e-4.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from grpo.core.advantage import STD_EPS, group_advantages


def turn_advantages(
    rewards: Sequence[Sequence[float]],
    states: Sequence[Sequence[Hashable]],
    *,
    weight: float = 1.0,
    gamma: float = 0.95,
    scale: str = "group_std",
    std: str = "sample",
    std_eps: float = STD_EPS,
) -> list[torch.Tensor]:
    """One tensor per episode of a group, one value per turn. `states`: what each turn began in.

    Two episodes that begin alike and end with rewards 1 and 0. Each is ±1/2 as an episode. The returns of the first
    turns are 0.5 and 0: ±1/4. The second turns began in different states, so they are compared with nothing.

    >>> turn_advantages([[0.0, 1.0], [0.0, 0.0]], [["", "left"], ["", "right"]], gamma=0.5, scale="none")
    [tensor([0.7500, 0.5000]), tensor([-0.7500, -0.5000])]
    """
    if scale not in ("group_std", "none"):
        raise ValueError(f"unknown scale {scale!r} of turns: group_std or none")
    if not rewards:
        return []
    totals_1G = torch.tensor([[sum(of_turns) for of_turns in rewards]], dtype=torch.float64)
    episodes_1G = group_advantages(totals_1G, scale=scale, std=std, std_eps=std_eps)
    returns = torch.tensor([each for of_turns in rewards for each in returns_of(of_turns, gamma)], dtype=torch.float64)
    places: dict[Hashable, list[int]] = {}
    for place, state in enumerate(state for of_turns in states for state in of_turns):
        places.setdefault(state, []).append(place)
    turns = torch.zeros_like(returns)
    for alike in places.values():
        turns[alike] = group_advantages(returns[None, alike], scale=scale, std=std, std_eps=std_eps)[0]
    by_episode = turns.split([len(of_turns) for of_turns in rewards])
    return [(episode + weight * of_turns).float() for episode, of_turns in zip(episodes_1G[0], by_episode, strict=True)]


def returns_of(rewards: Sequence[float], gamma: float) -> list[float]:
    """The discounted sum of the rewards from each turn on.

    >>> returns_of([1.0, 0.0, 4.0], 0.5)
    [2.0, 2.0, 4.0]
    """
    returns, after = [0.0] * len(rewards), 0.0
    for turn in reversed(range(len(rewards))):
        returns[turn] = after = rewards[turn] + gamma * after
    return returns
