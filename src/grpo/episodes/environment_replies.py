"""Environments that answer: the turns of the model go to one that lives in a worker process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.episodes.agent import answer_read, prompted, turn_sent
from grpo.episodes.answers import Answer, Episode, refuse_mistakes
from grpo.episodes.environments import Kind, with_text
from grpo.episodes.kinds import Env, Kinds
from grpo.episodes.residents import Residents, rewards_of
from grpo.errors import GrpoError
from grpo.rewards.conversation import conversation
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.invoke import History, Outcome, Request
from grpo.rewards.signature import OF_THE_TRAINER
from grpo.rollout.protocol import Ended
from grpo.types import Call, Observation, Problem

if TYPE_CHECKING:
    from grpo.episodes.tools import Asked, CallReader

NOTHING = np.zeros(0, dtype=np.int64)


class EnvironmentReplies:
    """Answers with an environment, one object for each episode.

    >>> class Guess:
    ...     def reset(self): return "Guess."
    ...     def step(self, text): return ("higher", 0.0, False) if int(text) < 7 else ("found", 1.0, True)
    >>> replies, episode = EnvironmentReplies(Guess), Episode(Problem("p", "Play. ", ""), "train/0/p/0")
    >>> replies.began(episode, *replies(replies.begin(episode))).prompt
    'Play. Guess.'
    >>> episode.turns += ("3",)
    >>> replies.answer_of(episode, replies(*replies.ask(episode)))
    'higher'
    >>> episode.turns += ("7",)
    >>> ended = replies.answer_of(episode, replies(*replies.ask(episode)))
    >>> ended.finish, ended.parts, ended.turn_rewards, ended.last.text
    ('stop', {'Guess': 1.0}, (0.0, 1.0), 'found')
    """

    batched = False
    required: tuple[str, ...] = ()
    may_join = False

    def __init__(self, env: Env | Mapping[str, Env], max_calls: int = 0):
        """`env`: one, or several by name. `max_calls`: most tool calls of an episode; 0: no limit."""
        self.env, self.max_calls = env, max_calls
        self.rewards: dict[bool, list[FunctionReward]] = {}
        """Functions that read `environments`, of training (False) and, where these have others, of evaluations."""
        self.readers: dict[str, CallReader] = {}
        """Find the calls of several environments, by title."""
        self.load()
        self.name = self.kinds.title
        self.parts: Sequence[str] = self.kinds.parts
        self.schemas_by_title = {kind.title: schemas_of(kind) for kind in self.kinds.by_name.values()}
        self.schemas: Sequence[Mapping[str, Any]] = [
            schema for schemas in self.schemas_by_title.values() for schema in schemas
        ]
        self.reader: CallReader | None = None
        """Finds the calls in a turn."""

    def load(self) -> None:
        self.kinds = Kinds(self.env)
        for rewards in self.rewards.values():
            for reward in rewards:
                reward.load()
        self.residents = Residents(self.kinds, self.rewards)

    def weights(self, key: str) -> Mapping[str, float]:
        """Of the rewards that an episode gets, by name."""
        functions = {reward.name: reward.spec.weight for reward in rewards_of(key, self.rewards)}
        return {**dict.fromkeys(self.parts, 1.0), **functions}

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process needs, which loads the class itself."""
        return {"env": self.env, "name": self.name, "rewards": self.rewards}

    def __call__(self, request: Request) -> list[Outcome]:
        return [self.residents.answer(request.only([row])) for row in range(len(request.texts))]

    def part_of(self, problem: Problem) -> str:
        return self.kinds.of(problem).name

    def take(
        self, functions: Mapping[Spec, Callable[..., Any] | None], *, evaluation: bool
    ) -> Mapping[Spec, tuple[str, ...]]:
        """Takes over the functions that read `environments`, as in TRL: they are called where the object lives."""
        self.rewards[evaluation] = []
        required: dict[Spec, tuple[str, ...]] = {}
        for spec, function in functions.items():
            seen = FunctionReward(spec, function)
            seen.load()
            if "environments" in seen.signature.names:
                self._check_function(spec, seen)
                # One that is not loaded: a worker process loads it by its name.
                self.rewards[evaluation].append(FunctionReward(spec, function))
                required[spec] = seen.required
        return required

    def _check_function(self, spec: Spec, seen: FunctionReward) -> None:
        if any(kind.messages for kind in self.kinds.by_name.values()):
            raise GrpoError(
                f"reward {spec}: takes environments, and {self.name} is an agent, which has no object; return its "
                "reward from the agent"
            )
        if unknown := [name for name in OF_THE_TRAINER if name in seen.required]:
            raise GrpoError(
                f"reward {spec}: takes environments and {unknown[0]}; it is called where its environment lives, where "
                f"{unknown[0]} is not known; leave one out"
            )
        if spec.part in self.parts:
            raise GrpoError(f"reward {spec}: has the name of the environment; rename one")

    def begin(self, episode: Episode) -> Request:
        self.kinds.of(episode.problem)  # refuses a problem that names none of several
        return self._request(episode)

    def began(self, episode: Episode, outcome: Outcome) -> Problem | Ended:
        refuse_mistakes(self.name, episode, [outcome])
        if outcome.fault:
            return _failed(outcome)
        episode.is_open, text = True, outcome.extra["text"] or ""
        episode.observations = (text,)
        kind = self.kinds.of(episode.problem)
        begun = prompted(episode.problem, text) if kind.messages else with_text(episode.problem, text)
        if self.kinds.by_column and kind.tools:  # its prompt describes no tools of the others
            begun = replace(begun, tools=tuple(self.schemas_by_title[kind.title]))
        episode.begun = begun
        return begun

    def ask(self, episode: Episode) -> Sequence[Request] | Ended:
        kind = self.kinds.of(episode.problem)
        asked, rest = self._calls(episode)
        if kind.tools and not asked:
            return Ended("stop")
        if self.max_calls and episode.calls + len(asked) > self.max_calls:
            return Ended("calls")
        episode.asked, episode.calls = asked, episode.calls + len(asked)
        turn = episode.turns[-1]
        if kind.messages:
            turn = turn_sent(rest, asked)
        elif kind.tools:
            turn = json.dumps([{"name": call.name, "arguments": call.arguments} for call in asked if not call.error])
        episode.played += (turn,)
        return [self._request(episode)]

    def answer_of(self, episode: Episode, outcomes: Sequence[Outcome]) -> Answer | Ended:
        refuse_mistakes(self.name, episode, outcomes)
        [outcome] = outcomes
        if outcome.fault:
            episode.is_open = False
            return _failed(outcome)
        text: str | None = outcome.extra["text"]
        episode.rewards += (outcome.extra["reward"] or 0.0,)
        if outcome.extra["done"]:
            return self._over(episode, Ended("stop"), outcome, text)
        episode.observations += (text or "",)
        kind = self.kinds.of(episode.problem)
        if kind.messages:
            return answer_read(text or "", episode.asked)
        return calls_answered(episode.asked, text or "[]") if kind.tools else text or ""

    def end(self, episode: Episode, ended: Ended) -> Request | None:
        return self._request(episode) if episode.is_open else None

    def last(self, episode: Episode, ended: Ended, outcome: Outcome) -> Ended:
        refuse_mistakes(self.name, episode, [outcome])
        return self._over(episode, ended, outcome, None)

    def _request(self, episode: Episode) -> Request:
        history = History(episode.key, episode.played, episode.observations)
        if not rewards_of(episode.key, self.rewards):
            return Request(episode.problem, ("",), histories=(history,))
        return Request(
            episode.problem,
            (episode.turns[-1] if episode.turns else "",),
            conversations=(conversation(episode.turns, episode.read),),
            histories=(history,),
        )

    def _over(self, episode: Episode, ended: Ended, outcome: Outcome, text: str | None) -> Ended:
        episode.is_open = False
        if outcome.fault:
            failed = _failed(outcome)
            return replace(ended, fault=failed.fault, why=failed.why)
        last = None if text is None else Observation(episode.tokens, NOTHING, text)
        if not outcome.parts:
            return replace(ended, last=last)
        # A turn without an answer was cut, or called nothing. The reward of the end is earned by the last turn.
        weights = self.weights(episode.key)
        total = sum(weights[name] * (value or 0.0) for name, value in outcome.parts.items())
        rewards = [*episode.rewards, *[0.0] * (len(episode.turns) - len(episode.rewards))]
        rewards[-1] += total - sum(episode.rewards)
        return replace(
            ended,
            last=last,
            parts=outcome.parts,
            turn_rewards=tuple(rewards),
            extra=outcome.extra.get("columns", {}),
            logged=outcome.logged,
        )

    def _calls(self, episode: Episode) -> tuple[Sequence[Asked], str]:
        """(the calls of the last turn; its text without them)"""
        kind = self.kinds.of(episode.problem)
        reader = self.reader
        if kind.messages:
            reader = self._new_reader(episode) if episode.begun and episode.begun.tools else None
        elif self.kinds.by_column and kind.tools:
            if kind.title not in self.readers:
                self.readers[kind.title] = self._new_reader(episode)
            reader = self.readers[kind.title]
        if reader is None or not (kind.tools or kind.messages):
            return (), episode.turns[-1]
        asked, rest = reader.read(episode.turns[-1])
        # An agent gets the calls that it can make; a turn with another one is a text to it.
        return ((), episode.turns[-1]) if kind.messages and any(call.error for call in asked) else (asked, rest)

    def _new_reader(self, episode: Episode) -> CallReader:
        """Finds calls of the tools that its prompt describes: those of one of several environments, or those that an
        agent named in its first request."""
        from grpo.episodes.tools import CallReader  # imports transformers, which a worker does not need

        assert episode.begun is not None
        known = (self.reader.tokenizer, self.reader.prefix) if self.reader else ()
        return CallReader(episode.begun.tools, *known)


def calls_answered(asked: Sequence[Asked], answers: str) -> tuple[Call, ...]:
    """The calls of a turn: those that were made, and those that could not be."""
    made = iter(json.loads(answers))
    return tuple(
        Call(call.name, call.written, call.error, "error")
        if call.error
        else Call(call.name, call.written, **next(made))
        for call in asked
    )


def schemas_of(kind: Kind) -> list[Mapping[str, Any]]:
    """JSON schemas of the methods that are tools; refuses one without types or a docstring."""
    if not kind.tools:
        return []
    from grpo.episodes.tools import schema_of  # imports transformers, which a worker does not need

    return [schema_of(tool, f"{kind.title}: {tool.__name__}") for tool in kind.tools]


def _failed(outcome: Outcome) -> Ended:
    assert outcome.fault in ("timeout", "crash", "failure")
    return Ended("stop", fault=outcome.fault, why=outcome.why)
