"""Smoothness of training runs, compared with sampling noise."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from grpo.lab.chapters.query import Query
from grpo.lab.trials.recorded import recorded_arms

TAIL = 20


def smoothness(query: Query) -> list[dict[str, Any]]:
    """Change of reward per step, std over seeds, and variation of the gradient norm,
    of every arm of the recorded comparison."""
    return [about(arm, 128) for arm in recorded_arms("ppo-and-grpo")]


def about(arm: dict[str, Any], completions: int) -> dict[str, Any]:
    """Sampling noise: the mean of n binary rewards has std √(p(1−p)/n); its change per step, √2 times that."""
    curves = [curve["value"] for curve in arm["curves"]["reward_mean"]]
    jumps = [jump(values) for values in curves]
    floor = fmean(math.sqrt(2 * max(0.0, p * (1 - p)) / completions) for values in curves for p in values)
    ends = [fmean(values[-TAIL:]) for values in curves]
    starts = [fmean(values[:TAIL]) for values in curves]
    norms = [curve["value"] for curve in arm["curves"]["grad_norm"]]
    return {
        "label": arm["label"],
        "seeds": len(curves),
        "jump": fmean(jumps),
        "floor": floor,
        "luck": floor**2 / fmean(jumps) ** 2 if any(jumps) else None,
        "early": fmean(starts),
        "late": fmean(ends),
        "apart": stdev(ends) if len(ends) > 1 else None,
        "grad_spread": fmean(stdev(values) / fmean(values) for values in norms if len(values) > 1),
    }


def jump(values: list[float]) -> float:
    """Root mean square of the change from one step to the next.

    >>> jump([0.0, 1.0, 0.0])
    1.0
    """
    return math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(values)))
