"""Advantages from rewards given to the steps of a completion (DeepSeekMath, arXiv 2402.03300 §4.1.3).

All step rewards of a group are normalised together: z = (r − mean) / (std + 1e-4). A token's advantage is the sum of
the z of the steps that end at it or after it. Where we differ: sample std plus 1e-4, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo.core.advantage import group_advantages


def process_advantages(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    scale: str = "group_std",
) -> list[torch.Tensor]:
    """One tensor per completion of a group, one value per token. `step_ends` are places of the steps' last tokens.

    Two completions with step rewards 1, 0 and 0: mean 1/3, so z (undivided) 2/3, −1/3 and −1/3.

    >>> process_advantages([[1.0, 0.0], [0.0]], [[1, 2], [0]], [3, 2], scale="none")
    [tensor([ 0.3333,  0.3333, -0.3333]), tensor([-0.3333,  0.0000])]
    """
    if scale not in ("group_std", "none"):
        raise ValueError(f"unknown scale {scale!r} of step rewards: group_std or none")
    flat = torch.tensor([[reward for rewards in step_rewards for reward in rewards]])
    normalised = iter(group_advantages(flat, baseline="mean", scale=scale)[0].tolist() if flat.numel() else [])
    advantages = []
    for rewards, ends, length in zip(step_rewards, step_ends, lengths, strict=True):
        tokens = torch.zeros(length)
        for _, end in zip(rewards, ends, strict=True):
            tokens[: end + 1] += next(normalised)
        advantages.append(tokens)
    return advantages
