"""Advantages from rewards of single steps of a completion (DeepSeekMath, arXiv 2402.03300 §4.1.3).

All step rewards of a group are normalised together: z = (r − mean) / (std + eps). A token's advantage is the sum of the
z of the steps that end at it or after it. Where we differ: by default the sample std, and eps 1e-4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpo.core.advantage import STD_EPS, group_advantages


def process_advantages(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    scale: str = "group_std",
    std: str = "sample",
    std_eps: float = STD_EPS,
) -> list[torch.Tensor]:
    """One tensor per completion of a group, one value per token. `step_ends`: position of the last token of each step.

    Two completions with step rewards 1, 0 and 0: mean 1/3, so z (undivided) 2/3, −1/3 and −1/3.

    >>> process_advantages([[1.0, 0.0], [0.0]], [[1, 2], [0]], [3, 2], scale="none")
    [tensor([ 0.3333,  0.3333, -0.3333]), tensor([-0.3333,  0.0000])]
    """
    if scale not in ("group_std", "none"):
        raise ValueError(f"unknown scale {scale!r} of step rewards: group_std or none")
    flat = torch.tensor([[reward for rewards in step_rewards for reward in rewards]])
    if not flat.numel():
        return [torch.zeros(length) for length in lengths]
    normalised = iter(group_advantages(flat, scale=scale, std=std, std_eps=std_eps)[0].tolist())
    advantages = []
    for rewards, ends, length in zip(step_rewards, step_ends, lengths, strict=True):
        tokens = torch.zeros(length)
        for _, end in zip(rewards, ends, strict=True):
            tokens[: end + 1] += next(normalised)
        advantages.append(tokens)
    return advantages
