"""Tasks that answer: their method `reply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo.episodes.answers import Answer, Episode, answered, refuse_mistakes
from grpo.errors import GrpoError
from grpo.rewards.pool.invoke import History, Outcome, Request
from grpo.rollout.protocol import Ended
from grpo.tasks.protocol import HasReplies, Task
from grpo.types import Problem

if TYPE_CHECKING:
    from grpo.episodes.tools import CallReader


class TaskReplies:
    """Answers with `reply` of a task, a function of the problem and of the turns of the model so far.

    >>> class Counts:
    ...     name = "counts"
    ...     def reply(self, problem, turns): return f"{len(turns)};" if len(turns) < 2 else None
    >>> episode = Episode(Problem("p", "", ""), "train/0/p/0", turns=("one",))
    >>> replies = TaskReplies(Counts())
    >>> replies.answer_of(episode, replies(*replies.ask(episode)))
    '1;'
    """

    batched = False
    required: tuple[str, ...] = ()
    may_join = True
    schemas: Sequence[Mapping[str, Any]] = ()
    reader: CallReader | None = None

    def __init__(self, task: Task):
        self.task, self.name = task, f"task {task.name}"

    def load(self) -> None: ...

    def __call__(self, request: Request) -> list[Outcome]:
        return [answered(partial(self._answer, request.problem, history)) for history in request.histories]

    def _answer(self, problem: Problem, history: History) -> tuple[str | None, str]:
        assert isinstance(self.task, HasReplies)
        text = self.task.reply(problem, list(history.turns))
        if text is None or (isinstance(text, str) and text):
            return text, ""
        raise GrpoError(f"reply returned {text!r:.200}; return a text, or None to end the episode")

    def begin(self, episode: Episode) -> None: ...

    def began(self, episode: Episode, outcome: Outcome) -> Problem:
        return episode.problem

    def ask(self, episode: Episode) -> Sequence[Request] | Ended:
        return [episode.request(episode.turns[-1])]

    def answer_of(self, episode: Episode, outcomes: Sequence[Outcome]) -> Answer | Ended:
        refuse_mistakes(self.name, episode, outcomes)
        [outcome] = outcomes
        if outcome.fault:
            assert outcome.fault != "mistake"
            return Ended("stop", fault=outcome.fault, why=outcome.why)
        text: str | None = outcome.extra["answer"]
        return Ended("stop") if text is None else text

    def end(self, episode: Episode, ended: Ended) -> None: ...

    def last(self, episode: Episode, ended: Ended, outcome: Outcome) -> Ended:
        return ended
