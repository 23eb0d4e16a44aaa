"""Chooses and starts the replier of a run: tools, an environment, or the task itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from grpo.config import Episodes, Scoring
from grpo.episodes.answers import Answers, Replier
from grpo.episodes.calls import ToolCalls
from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.episodes.kinds import named
from grpo.episodes.replies import TaskReplies
from grpo.errors import GrpoError
from grpo.rewards.pool.confine import Limits
from grpo.rewards.scoring import why_not_sent
from grpo.rollout.protocol import Episodes as Plays
from grpo.rollout.protocol import Sampling
from grpo.tasks.handed_over import PREFIX, refuse_recorded
from grpo.tasks.protocol import HasProblems, HasReplies, Task, is_trusted
from grpo.types import Problem


def chosen_replier(
    settings: Episodes, tools: Mapping[str, Any] | None = None, env: Mapping[str, Any] | None = None
) -> Replier | None:
    """The replier that the settings name; None: they name none. `tools`, `env`: what was handed over, by the name after
    `python:`."""
    if settings.env:
        return EnvironmentReplies(
            {name: _given(str(place), env or {}) for name, place in named(settings.env).items()}, settings.max_calls
        )
    if not settings.tools:
        return None
    from grpo.episodes.tools import load_tools  # imports transformers

    return ToolCalls(load_tools(settings.tools, tools), settings)


def _given(place: str, env: Mapping[str, Any]) -> Any:
    """The object handed over that a text names, or the text."""
    given = env.get(place.removeprefix(PREFIX))
    if given is None:
        refuse_recorded("episodes.env", place, "name another with --env")
    return given or place


def start_answers(
    settings: Episodes, scoring: Scoring, task: Task | None, chosen: Replier | None = None
) -> Answers | None:
    """Answers of the replier that the settings have chosen, or of the task, if it can; None: completions have one turn.
    The caller closes it."""
    limits = Limits(settings.tool_seconds, int(scoring.memory_gb * 2**30), workers=scoring.workers)
    if isinstance(chosen, EnvironmentReplies) and task:
        chosen.kinds.check_columns(task.problems() if isinstance(task, HasProblems) else task.heldout())
    if not isinstance(task, HasReplies):
        return Answers(chosen, limits) if chosen else None
    if chosen:
        field = "tools" if settings.tools else "env"
        raise GrpoError(
            f"field episodes.{field}: task {task.name} answers itself, with its method reply; leave episodes.{field} "
            "out, or name another task or data (where none is named, a model's own task is taken)"
        )
    replies = TaskReplies(task)
    why = "" if is_trusted(task) else why_not_sent(replies)
    answers = Answers(replies, limits, in_process=is_trusted(task) or bool(why))
    if why:
        answers.assumptions.append(
            f"{replies.name} answers in the trainer's process, where a call that hangs is not ended: {why}"
        )
    return answers


def begun(episodes: Plays, problems: Sequence[Problem], max_new_tokens: int) -> list[Problem | None]:
    """The problems with what an environment adds to their prompts; None: it was to make the prompt, and failed."""
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=max_new_tokens, purpose="preflight")
    with closing(episodes.begin(problems, 1, sampling)) as play:
        return [None if p in play.prompts else problem for p, problem in enumerate(play.problems)]
