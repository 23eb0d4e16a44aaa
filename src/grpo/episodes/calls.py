"""Tools: makes the calls that a turn asks for, all at once, in worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo.config import Episodes
from grpo.episodes.answers import Answer, Episode, answered
from grpo.errors import one_line
from grpo.rewards.functions import awaited
from grpo.rewards.pool.invoke import Outcome, Request, error_line, exhausted
from grpo.rollout.protocol import Ended
from grpo.types import Call, Problem

if TYPE_CHECKING:
    from grpo.episodes.tools import Asked, CallReader, Tool  # imports transformers, which workers do without

LONGEST_ERROR = 300
"""Characters of an error that the model reads."""


class ToolCalls:
    """Answers with the results of functions. A turn without a call ends the episode."""

    batched = False
    required: tuple[str, ...] = ()
    may_join = False

    def __init__(self, tools: Sequence[Tool], limits: Episodes):
        self.name = f"tools {', '.join(tool.name for tool in tools)}"
        self.places = {tool.name: tool.place for tool in tools if tool.place}
        self.functions = {tool.name: tool.function for tool in tools if tool.function}
        """Those handed over; once it is loaded, all."""
        self.schemas: Sequence[Mapping[str, Any]] = [tool.schema for tool in tools]
        self.limits = limits
        self.reader: CallReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process needs, which finds no calls."""
        return {**self.__dict__, "reader": None}

    def load(self) -> None:
        self.functions |= {name: place.load() for name, place in self.places.items()}

    def __call__(self, request: Request) -> list[Outcome]:
        call = json.loads(request.texts[0])
        return [answered(lambda: result_of(self.functions[call["name"]], call["arguments"]))]

    def begin(self, episode: Episode) -> None: ...

    def began(self, episode: Episode, outcome: Outcome) -> Problem:
        return episode.problem

    def ask(self, episode: Episode) -> Sequence[Request] | Ended:
        assert self.reader is not None
        asked, _ = self.reader.read(episode.turns[-1])
        if not asked:
            return Ended("stop")
        if len(episode.turns) >= self.limits.max_turns:
            return Ended("turns")
        if self.limits.max_calls and episode.calls + len(asked) > self.limits.max_calls:
            return Ended("calls")
        episode.asked, episode.calls = asked, episode.calls + len(asked)
        made = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in asked if not call.error]
        return [episode.request(call, f"/{number}") for number, call in enumerate(made)]

    def answer_of(self, episode: Episode, outcomes: Sequence[Outcome]) -> Answer | Ended:
        found = iter(outcomes)
        return tuple(
            Call(call.name, call.written, call.error, "error") if call.error else _made(call, next(found))
            for call in episode.asked
        )

    def end(self, episode: Episode, ended: Ended) -> None: ...

    def last(self, episode: Episode, ended: Ended, outcome: Outcome) -> Ended:
        return ended


def _made(call: Asked, outcome: Outcome) -> Call:
    if not outcome.fault:
        return Call(call.name, call.written, outcome.extra["answer"], outcome.extra["fault"])
    why = one_line(f"error: {call.name}: {error_line(outcome.why)}", LONGEST_ERROR)
    return Call(call.name, call.written, why, "timeout" if outcome.fault == "timeout" else "crash")


def result_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, str]:
    """The answer and its fault.

    >>> result_of(len, {"text": "four"})
    ('error: TypeError: len() takes no keyword arguments', 'error')
    """
    try:
        return str(awaited(function(**arguments))), ""
    except BaseException as error:  # border: people's code, which may raise anything; the model reads it
        if exhausted(error) or isinstance(error, SystemExit):
            raise
        return one_line(f"error: {type(error).__name__}: {error}", LONGEST_ERROR), "error"
