"""Who answers the turns of episodes, and how they are asked: in worker processes, or in the trainer's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, Self

from grpo.errors import GrpoError, one_line
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import History, Outcome, Request, Reward, invoke
from grpo.rewards.pool.workers import Workers
from grpo.rollout.protocol import Ended, Turn
from grpo.types import Call, Observation, Problem

if TYPE_CHECKING:
    from grpo.episodes.tools import Asked, CallReader  # imports transformers, which workers do without

MAX_ANSWER = 1 << 20
"""Characters of an answer that leave a worker process; the rest is cut."""

SECONDS_OF_REQUEST = 0.002
"""Requests that take less together are sent as one."""
MAX_ROWS, REQUESTS_PER_WORKER = 16, 4

Answer = str | tuple[Call, ...]
"""What a completion reads next: a text, or the answers to the calls of its turn."""


@dataclass(eq=False)
class Episode:
    """The episode of one completion, so far."""

    problem: Problem
    key: str
    begun: Problem | None = None
    """The problem as its environment begins it: as the model reads it."""
    turns: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()
    """What the replier keeps of its answers, for later requests."""
    read: tuple[Observation, ...] = ()
    """What the model read after its turns."""
    tokens: int = 0
    """Those it has sampled."""
    asked: Sequence[Asked] = ()
    """Calls of its last turn."""
    calls: int = 0
    """Number of its calls so far."""
    seconds: float = 0.0
    """Of all answers."""
    played: tuple[str, ...] = ()
    """Its turns as an environment got them: texts, or tool calls as JSON."""
    rewards: tuple[float, ...] = ()
    """That its environment gave for these turns."""
    is_open: bool = False
    """Whether its environment lives in a worker, and has to be closed."""

    def add(self, turn: Turn) -> None:
        self.turns += (turn.text,)
        self.tokens += turn.tokens

    def request(self, text: str, key: str = "") -> Request:
        """Asks for an answer to this text."""
        return Request(self.problem, (text,), histories=(History(self.key + key, self.turns, self.observations),))


class Replier(Reward, Protocol):
    """A task, tools or an environment. It is called in worker processes, as a reward is; its other methods run in the
    trainer's process, for each episode in this order: `begin` and `began`; for each turn that was not cut `ask` and
    `answer_of`; `end` and `last`. Of each pair the first makes requests, and the second reads their outcomes. `began`
    and `last` are called only where there was a request."""

    schemas: Sequence[Mapping[str, Any]]
    """Those of the tools that the model may call."""
    may_join: bool
    """Whether one request may hold several turns: those after one that ends its worker are answered again, which must
    not change anything."""
    reader: CallReader | None
    """Finds the calls in a turn, where there are tools; set by `Episodes`, in the trainer's process."""

    def begin(self, episode: Episode) -> Request | None:
        """Asks for what the model reads before its first turn; None: nothing."""
        ...

    def began(self, episode: Episode, outcome: Outcome) -> Problem | Ended:
        """The problem with that added to its prompt, or why the episode cannot begin."""
        ...

    def ask(self, episode: Episode) -> Sequence[Request] | Ended:
        """Requests of one row each, for the episode's last turn, which was not cut."""
        ...

    def answer_of(self, episode: Episode, outcomes: Sequence[Outcome]) -> Answer | Ended:
        """The answer, from the outcomes of the requests."""
        ...

    def end(self, episode: Episode, ended: Ended) -> Request | None:
        """Asks for the last word on an episode that has ended; None: there is none."""
        ...

    def last(self, episode: Episode, ended: Ended, outcome: Outcome) -> Ended:
        """The end of the episode with that last word."""
        ...


class Answers:
    """Asks a replier, in worker processes, which end a call that hangs or crashes, or in this process."""

    def __init__(self, replier: Replier, limits: Limits, *, in_process: bool = False):
        self.replier, self.limits = replier, limits
        self.workers = None if in_process else Workers([replier], limits)
        self.seconds = math.inf
        """Mean of the last answers; not known before the first."""
        self.assumptions: list[str] = []
        """Assumptions to report when a run starts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self.workers:
            self.workers.close()

    def ready(self) -> None:
        """Waits until the replier is loaded. Raises GrpoError where it cannot be."""
        if self.workers:
            self.workers.ready()

    def start(self, requests: Sequence[Request]) -> Callable[[], list[Outcome]]:
        """Starts to ask; the function returned waits for the outcomes, one for each request."""
        if self.workers is None:
            return lambda: [outcome for request in requests for outcome in invoke(self.replier, request)]
        finish = self.workers.start(self._joined(requests))

        def wait() -> list[Outcome]:
            outcomes = [outcome for rows in finish()[0] for outcome in rows]
            self.seconds = fmean(outcome.extra.get("seconds", self.limits.seconds) for outcome in outcomes)
            return outcomes

        return wait

    def _joined(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Requests of quick answers for one problem as one, because a message costs more than such an answer; enough
        are left to keep all workers busy."""
        assert self.workers is not None
        few = len(requests) // (REQUESTS_PER_WORKER * self.workers.limits.workers)
        size = int(min(MAX_ROWS, few, SECONDS_OF_REQUEST // max(self.seconds, 1e-9)))
        if not self.replier.may_join or size < 2:
            return requests
        of_problems = (list(each) for _, each in groupby(requests, key=lambda request: request.problem.id))
        parts = [each[i : i + size] for each in of_problems for i in range(0, len(each), size)]
        return [
            replace(
                part[0],
                texts=tuple(text for request in part for text in request.texts),
                histories=tuple(history for request in part for history in request.histories),
            )
            for part in parts
        ]


def answered(answer: Callable[[], tuple[str | None, str]]) -> Outcome:
    """The outcome of an answer, in a worker process: its text and fault, and the seconds it took."""
    started = time.monotonic()
    text, fault = answer()
    text = None if text is None else readable(text)
    return Outcome(extra={"answer": text, "fault": fault, "seconds": time.monotonic() - started})


def readable(text: str) -> str:
    """The text as it leaves a worker process: cut, and with characters that can be encoded. Half a surrogate pair
    cannot, and no tokenizer takes it."""
    return text[:MAX_ANSWER].encode(errors="replace").decode()


def refuse_mistakes(name: str, episode: Episode, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.fault == "mistake":
            turn = f", turn {one_line(repr(episode.turns[-1]), 60)}" if episode.turns else ""
            raise GrpoError(f"{name}, problem {episode.problem.label}{turn}: {outcome.why}")
