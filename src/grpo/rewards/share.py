"""One rank's share of what rewards may use."""

from __future__ import annotations

from dataclasses import replace

from grpo.config import Scoring
from grpo.distributed.world import World
from grpo.rewards.pool.workers import MAX_WORKERS


def share_of_rank(scoring: Scoring, world: World) -> Scoring:
    """The settings of one rank's rewards: its part of the host's workers and of the judge's budget.

    >>> mine = share_of_rank(Scoring(workers=9, judge_budget=100), World(size=8, local_size=4))
    >>> mine.workers, mine.judge_budget
    (2, 12)
    """
    if world.size == 1:
        return scoring
    share = (scoring.workers or MAX_WORKERS) // world.local_size
    return replace(
        scoring,
        workers=max(1, share if scoring.workers else min(share, world.cores)),
        judge_budget=max(1, scoring.judge_budget // world.size),
    )
