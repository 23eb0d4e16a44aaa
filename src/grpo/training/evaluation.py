"""Evaluation on held-out problems: accuracy with its 95% interval, mean reward, length and traits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from grpo.distributed.world import ALONE, World
from grpo.record.episode_metrics import episode_metrics
from grpo.rewards import Scorer
from grpo.rollout.protocol import Sampling, SamplingEngine
from grpo.types import Completion, Group, Problem


def evaluate(
    engine: SamplingEngine,
    scorer: Scorer,
    problems: Sequence[Problem],
    sampling: Sampling,
    step: int = 0,
    world: World = ALONE,
) -> tuple[dict[str, float], list[Group]]:
    """Metrics of one sampled and one greedy completion per problem, and the groups of sampled ones.

    The sampling noise is the same at every evaluation of a run, so two evaluations differ only by the policy. `step` is
    the number of training steps before it, which reward functions see.
    """
    sampling = replace(sampling, step=0, purpose="eval")
    greedily = replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    mine = world.mine(problems)
    sampled, greedy = (world.gather(scorer.score(engine.sample(mine, 1, each), step)) for each in (sampling, greedily))
    completions = [group.completions[0] for group in sampled]
    row = accuracy_row(completions)
    row |= {f"greedy_{name}": value for name, value in accuracy_row([g.completions[0] for g in greedy]).items()}
    if scored := [completion.reward for completion in completions if completion.reward is not None]:
        row["reward_mean"] = fmean(scored)
    row["length_mean"] = sum(map(len, completions)) / len(completions)
    row |= part_means(completions) | logged_means(completions) | trait_shares(completions)
    return row | episode_metrics(completions), sampled


def logged_means(completions: Sequence[Completion]) -> dict[str, float]:
    """Mean of each metric that reward functions logged, over the completions of the calls that logged it."""
    names = dict.fromkeys(name for completion in completions for name in completion.logged)
    return {f"logged/{name}": fmean(c.logged[name] for c in completions if name in c.logged) for name in names}


def part_means(completions: Sequence[Completion]) -> dict[str, float]:
    """Mean of each part of the reward, over the completions that it applies to."""
    values: dict[str, list[float]] = {}
    for completion in completions:
        for name, value in completion.parts.items():
            if value is not None:
                values.setdefault(f"part/{name}", []).append(value)
    return {name: fmean(each) for name, each in values.items()}


def trait_shares(completions: Sequence[Completion]) -> dict[str, float]:
    """Mean of each trait. Completions whose checker failed are skipped."""
    names = dict.fromkeys(name for completion in completions for name in completion.traits)
    return {f"{name}_share": fmean(c.traits[name] for c in completions if name in c.traits) for name in names}


def accuracy_row(completions: Sequence[Completion]) -> dict[str, float]:
    """Accuracy and its 95% interval over the completions that could be judged; empty where none could."""
    judged = [completion.correct for completion in completions if completion.correct is not None]
    if not judged:
        return {}
    low, high = wilson_interval(sum(judged), len(judged))
    return {"accuracy": sum(judged) / len(judged), "low": low, "high": high}


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """95% interval of a share (Wilson, 1927). Unlike ± 2 standard errors it stays valid near 0 and 1.

    >>> [round(bound, 4) for bound in wilson_interval(90, 100)]
    [0.8256, 0.9448]
    >>> [round(bound, 4) for bound in wilson_interval(0, 10)]
    [0.0, 0.2775]
    """
    z = 1.959964  # 95% of a normal distribution lie within z standard deviations
    share, z2 = right / count, z * z / count
    centre = share + z2 / 2
    half = z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))
