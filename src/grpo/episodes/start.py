"""Starts whoever answers in the episodes of a run: tools, an environment, or the task itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from grpo.config import Episodes, Scoring
from grpo.episodes.answers import Answers, Replier
from grpo.episodes.replies import TaskReplies
from grpo.errors import GrpoError
from grpo.rewards.pool.confine import Limits
from grpo.rewards.scoring import why_not_sent
from grpo.rollout.protocol import Episodes as Plays
from grpo.rollout.protocol import Sampling
from grpo.tasks.protocol import HasReplies, Task, is_trusted
from grpo.types import Problem


def start_answers(settings: Episodes, scoring: Scoring, task: Task, chosen: Replier | None = None) -> Answers | None:
    """Answers of the replier that the settings have chosen, or of the task, if it can; None: completions have one turn.
    The caller closes it."""
    limits = Limits(settings.tool_seconds, int(scoring.memory_gb * 2**30), workers=scoring.workers)
    if not isinstance(task, HasReplies):
        return Answers(chosen, limits) if chosen else None
    if chosen:
        field = "tools" if settings.tools else "env"
        raise GrpoError(f"field episodes.{field}: task {task.name} answers itself, with its method reply; leave it out")
    replies = TaskReplies(task)
    why = "" if is_trusted(task) else why_not_sent(replies)
    answers = Answers(replies, limits, in_process=is_trusted(task) or bool(why))
    if why:
        answers.assumptions.append(
            f"{replies.name} answers in the trainer's process, where a call that hangs is not ended: {why}"
        )
    return answers


def begun(episodes: Plays, problems: Sequence[Problem], max_new_tokens: int) -> list[Problem]:
    """The problems with what an environment adds to their prompts."""
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=max_new_tokens, purpose="preflight")
    with closing(episodes.begin(problems, 1, sampling)) as play:
        return list(play.problems)
