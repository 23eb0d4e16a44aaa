"""Starts whoever answers in the episodes of a run."""

from __future__ import annotations

from grpo.config import Episodes, Scoring
from grpo.episodes.answers import Answers
from grpo.episodes.replies import TaskReplies
from grpo.rewards.pool.confine import Limits
from grpo.tasks.protocol import HasReplies, Task, is_trusted


def start_answers(settings: Episodes, scoring: Scoring, task: Task) -> Answers | None:
    """None where nobody answers: completions then have one turn. The caller closes it."""
    if not isinstance(task, HasReplies):
        return None
    limits = Limits(settings.tool_seconds, int(scoring.memory_gb * 2**30), workers=scoring.workers)
    return Answers(TaskReplies(task), limits, trusted=is_trusted(task))
