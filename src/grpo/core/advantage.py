"""Advantages of completions, compared with their group or batch: A = (r − baseline) / (std + eps).

GRPO: DeepSeekMath (arXiv 2402.03300) §4.1.2; Dr. GRPO: arXiv 2503.20783; RLOO: arXiv 2402.14740; OPO: arXiv 2505.23585;
REINFORCE++: arXiv 2501.03262.
Where we differ: by default the std is the sample std (n − 1) and eps is 1e-4. A group without spread gets exactly 0,
not rounding noise divided by eps.

With rewards of single steps: process.py. With a critic: gae.py.
"""

from __future__ import annotations

from functools import partial

import torch

STD_EPS = 1e-4
"""Added to every std by default, as in TRL; it lowers the advantage of a binary reward by about 0.02%."""

CORRECTION = {"sample": 1, "population": 0}
"""Degrees-of-freedom correction of each kind of standard deviation, as in torch.std: it divides by n − correction."""

GROUP_BASELINES = ("mean", "leave_one_out", "length_weighted")


def group_advantages(
    rewards_PG: torch.Tensor,
    valid_PG: torch.Tensor | None = None,
    lengths_PG: torch.Tensor | None = None,
    *,
    baseline: str = "mean",
    scale: str = "group_std",
    std: str = "sample",
    std_eps: float = STD_EPS,
) -> torch.Tensor:
    """One advantage per completion; 0 where `valid_PG` is False.

    baseline: mean (of the group's valid rewards), leave_one_out (mean of the others), batch (mean of all groups),
    length_weighted (OPO: mean weighted by completion length, needs `lengths_PG`).
    scale: group_std, batch_std (of the centred rewards of all groups), none.
    std: sample (divides by n − 1) or population (by n); `std_eps` is added to it.

    One right answer among four, rewards (1, 0, 0, 0): mean 1/4, sample std 1/2, population std √3/4.

    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    tensor([[ 1.4997, -0.4999, -0.4999, -0.4999]], dtype=torch.float64)
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), std="population", std_eps=1e-8)
    tensor([[ 1.7321, -0.5774, -0.5774, -0.5774]])
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), baseline="leave_one_out", scale="none")
    tensor([[ 1.0000, -0.3333, -0.3333, -0.3333]])
    """
    if not rewards_PG.is_floating_point():
        rewards_PG = rewards_PG.float()
    valid_PG = torch.ones_like(rewards_PG, dtype=torch.bool) if valid_PG is None else valid_PG.bool()
    # An unscored completion's reward may be NaN, which must not reach a sum.
    rewards_PG = rewards_PG.masked_fill(~valid_PG, 0.0)
    count_P1 = valid_PG.sum(dim=1, keepdim=True)

    centred_PG = rewards_PG - _baseline(rewards_PG, valid_PG, lengths_PG, count_P1, baseline)
    # A group without spread has no signal. Where groups are compared with each other, a batch without spread has none.
    by_group = baseline in GROUP_BASELINES or scale == "group_std"
    spread = ranges(rewards_PG, valid_PG) if by_group else ranges(rewards_PG.reshape(1, -1), valid_PG.reshape(1, -1))
    centred_PG = centred_PG.masked_fill((spread == 0) | ~valid_PG, 0.0)

    if scale == "none":
        return centred_PG
    if scale == "group_std":
        mean_P1 = rewards_PG.sum(dim=1, keepdim=True) / count_P1.clamp(min=1)
        squares_PG = ((rewards_PG - mean_P1) ** 2).masked_fill(~valid_PG, 0.0)
        std_P1 = (squares_PG.sum(dim=1, keepdim=True) / (count_P1 - correction(std)).clamp(min=1)).sqrt()
        return centred_PG / (std_P1 + std_eps)
    if scale == "batch_std":
        centred_N = centred_PG[valid_PG]
        if len(centred_N) < 2:
            return torch.zeros_like(centred_PG)
        return centred_PG / (centred_N.std(correction=correction(std)) + std_eps)
    raise ValueError(f"unknown scale {scale!r}: group_std, batch_std or none")


def correction(std: str) -> int:
    """The degrees-of-freedom correction, as in torch.std: 1 for sample, 0 for population."""
    if std not in CORRECTION:
        raise ValueError(f"unknown std {std!r}: sample or population")
    return CORRECTION[std]


def parts_advantages(
    parts_PGK: torch.Tensor,
    weights_K: torch.Tensor,
    valid_PG: torch.Tensor | None = None,
    *,
    std: str = "sample",
    std_eps: float = STD_EPS,
) -> torch.Tensor:
    """One advantage per completion from several rewards: each is normalised in its group, and their weighted sum is
    divided by its std over the batch (GDPO, arXiv 2601.05242). NaN: the reward does not apply.

    The first completion earns 1 of the first reward, the second 0.1 of the other; both get nearly the same advantage.

    >>> parts = torch.tensor([[[1.0, 0.0], [0.0, 0.1], [0.0, 0.0]]])
    >>> parts_advantages(parts, torch.ones(2))
    tensor([[ 0.5786,  0.5759, -1.1546]])
    >>> group_advantages(parts.sum(dim=2))
    tensor([[ 1.1497, -0.4841, -0.6656]])
    """
    applies_PGK = ~parts_PGK.isnan() if valid_PG is None else ~parts_PGK.isnan() & valid_PG[..., None]
    normalise = partial(group_advantages, std=std, std_eps=std_eps)
    by_part = [normalise(parts_PGK[..., k], applies_PGK[..., k]) * weights_K[k] for k in range(len(weights_K))]
    summed_PG = torch.stack(by_part).sum(dim=0)
    rounding_PG = 8 * torch.finfo(summed_PG.dtype).eps * torch.stack(by_part).abs().sum(dim=0)
    summed_PG[summed_PG.abs() <= rounding_PG] = 0.0  # parts that cancel have no signal
    summed_N = summed_PG[applies_PGK.any(dim=2)]
    if len(summed_N) < 2:
        return torch.zeros_like(summed_PG)
    return summed_PG / (summed_N.std(correction=correction(std)) + std_eps)  # in every group the mean is 0 already


def _baseline(
    rewards_PG: torch.Tensor,
    valid_PG: torch.Tensor,
    lengths_PG: torch.Tensor | None,
    count_P1: torch.Tensor,
    baseline: str,
) -> torch.Tensor:
    total_P1 = rewards_PG.sum(dim=1, keepdim=True)
    if baseline == "mean":
        return total_P1 / count_P1.clamp(min=1)
    if baseline == "leave_one_out":
        return (total_P1 - rewards_PG) / (count_P1 - 1).clamp(min=1)
    if baseline == "batch":
        return total_P1.sum() / count_P1.sum().clamp(min=1)
    if baseline == "length_weighted":
        if lengths_PG is None:
            raise ValueError('baseline "length_weighted" needs lengths_PG')
        weights_PG = lengths_PG.to(rewards_PG.dtype).masked_fill(~valid_PG, 0.0)
        return (weights_PG * rewards_PG).sum(dim=1, keepdim=True) / weights_PG.sum(dim=1, keepdim=True).clamp(min=1)
    raise ValueError(f"unknown baseline {baseline!r}: mean, leave_one_out, batch or length_weighted")


def ranges(rewards_PG: torch.Tensor, valid_PG: torch.Tensor) -> torch.Tensor:
    """Largest minus smallest valid reward of each group; 0 with fewer than two, or if they differ by rounding only."""
    highest_P1 = rewards_PG.masked_fill(~valid_PG, -torch.inf).amax(dim=1, keepdim=True)
    lowest_P1 = rewards_PG.masked_fill(~valid_PG, torch.inf).amin(dim=1, keepdim=True)
    # 0.1 + 0.2 is not 0.3: sums of the same parts in another order differ in their last bits.
    rounding_P1 = 8 * torch.finfo(rewards_PG.dtype).eps * torch.maximum(highest_P1.abs(), lowest_P1.abs())
    return torch.where(highest_P1 - lowest_P1 > rounding_P1, highest_P1 - lowest_P1, 0.0)
