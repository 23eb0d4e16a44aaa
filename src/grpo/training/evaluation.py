"""Held-out accuracy, with the interval that says how much of it is luck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from grpo.rewards import Scorer
from grpo.rollout.protocol import Sampling, SamplingEngine
from grpo.types import Completion, Group, Problem, is_right


def evaluate(
    engine: SamplingEngine,
    scorer: Scorer,
    problems: Sequence[Problem],
    sampling: Sampling,
) -> tuple[dict[str, float], list[Group]]:
    """One sampled and one greedy answer to each problem. The groups returned are the sampled ones.

    The sampling noise is the same at every evaluation of a run, so two evaluations differ by the policy alone.
    """
    sampling = replace(sampling, step=0, purpose="eval")
    sampled = scorer.score(engine.sample(problems, 1, sampling))
    greedy = scorer.score(engine.sample(problems, 1, replace(sampling, temperature=0.0, top_k=0, top_p=1.0)))
    completions = [group.completions[0] for group in sampled]
    row = accuracy_row(sampled) | {f"greedy_{name}": value for name, value in accuracy_row(greedy).items()}
    if scored := [completion.reward for completion in completions if completion.reward is not None]:
        row["reward_mean"] = fmean(scored)
    row["length_mean"] = sum(map(len, completions)) / len(completions)
    return row | trait_shares(completions), sampled


def trait_shares(completions: Sequence[Completion]) -> dict[str, float]:
    """Of each trait among the completions that have it: one whose check went wrong has none."""
    names = dict.fromkeys(name for completion in completions for name in completion.traits)
    return {f"{name}_share": fmean(c.traits[name] for c in completions if name in c.traits) for name in names}


def accuracy_row(groups: Sequence[Group]) -> dict[str, float]:
    rewards = [completion.reward for group in groups for completion in group.completions]
    right = sum(is_right(reward) for reward in rewards)
    low, high = wilson_interval(right, len(rewards))
    return {"accuracy": right / len(rewards), "low": low, "high": high}


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """95% interval of a share (Wilson, 1927); unlike ± 2 standard errors it is honest near 0 and 1.

    >>> [round(bound, 4) for bound in wilson_interval(90, 100)]
    [0.8256, 0.9448]
    >>> [round(bound, 4) for bound in wilson_interval(0, 10)]
    [0.0, 0.2775]
    """
    z = 1.959964  # of a normal distribution, 95% lie within so many deviations
    share, z2 = right / count, z * z / count
    centre = share + z2 / 2
    half = z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))
