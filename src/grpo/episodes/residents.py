"""Environments in worker processes: each lives in one worker, from `reset` until its episode ends.

Every request carries the episode's whole history. A worker that does not hold the episode, because the one that did has
ended, plays it again and compares its texts with what the model has read.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from grpo.episodes.client import AgentError
from grpo.episodes.environments import Environment, Played, Step, seed_of, with_text
from grpo.episodes.kinds import Kinds
from grpo.errors import GrpoError, one_line
from grpo.rewards.functions import FunctionReward
from grpo.rewards.pool.invoke import History, Outcome, Request
from grpo.types import Problem

EVALUATIONS = ("eval", "probe")
"""Purposes of rollouts that are scored with the rewards of evaluations."""


class NotRepeatableError(Exception):
    """An episode that was played again went another way."""


@dataclass(eq=False)
class Resident:
    """An episode in this process."""

    environment: Environment
    problem: Problem
    key: str
    observations: list[str] = field(default_factory=list)
    """The texts it returned: from `reset`, and for each turn."""
    rewards: list[float] = field(default_factory=list)
    """Of its turns."""

    def begin(self) -> Step:
        seed_random(self.problem.id)
        text = self.environment.reset(self.problem, seed_of(self.problem))
        return self._record(Step(text))

    def step(self, turn: str) -> Step:
        seed_random(f"{self.key}/{len(self.observations)}")
        return self._record(Step(*self.environment.step(turn)))

    def _record(self, step: Step) -> Step:
        self.observations.append(step.text or "")
        self.rewards += [] if step.reward is None else [step.reward]
        return step

    def total(self) -> float | None:
        """Reward of the episode: those of its turns, and that of its end; None where it has neither."""
        seed_random(f"{self.key}/end")
        end = self.environment.reward()
        rewards = [*self.rewards, *([] if end is None else [end])]
        return sum(rewards) if rewards else None

    def play_again(self, turns: Sequence[str], observations: Sequence[str]) -> None:
        """Raises NotRepeatableError where a text differs from what the model has read."""
        for i, expected in enumerate(observations):
            step = self.begin() if i == 0 else self.step(turns[i - 1])
            if self.observations[-1] != expected or step.done:
                when = f"after turn {i}" if i else "in reset"
                raise NotRepeatableError(
                    f"{when} it returned {one_line(repr(self.observations[-1]), 120)}, and before that "
                    f"{one_line(repr(expected), 120)}"
                )


class Residents:
    """The episodes that live in this process."""

    def __init__(self, kinds: Kinds, rewards: Mapping[bool, Sequence[FunctionReward]]):
        """`rewards`: functions that read `environments`, of training and of evaluations."""
        self.kinds, self.rewards = kinds, rewards
        self.held: dict[str, Resident] = {}
        """By key."""

    def answer(self, request: Request) -> Outcome:
        """Answers a request of one row. Its history says which call is meant: `reset` where it is empty; `step` where
        the last turn has no observation yet; the end of the episode where it has one."""
        started = time.monotonic()
        try:
            with self._episode(request.problem, request.histories[0]) as resident:
                outcome = self._answer(resident, request)
        except NotRepeatableError as error:
            return Outcome(fault="failure", why=f"not repeatable: {error}")
        except AgentError as error:
            return Outcome(fault="failure", why=str(error))
        return replace(outcome, extra={**outcome.extra, "seconds": time.monotonic() - started})

    @contextmanager
    def _episode(self, problem: Problem, history: History) -> Iterator[Resident]:
        """The episode of this history. It is closed if anything goes wrong."""
        resident = self.held.pop(history.key, None)
        lost = resident is None or tuple(resident.observations) != history.observations
        kind = self.kinds.of(problem)
        if lost and history.observations and not kind.repeatable:
            raise NotRepeatableError("its worker process ended, and the class says repeatable = False")
        if resident is None or lost:
            seed_random(problem.id)
            resident = Resident(kind.make(), problem, history.key)
        try:
            if lost:
                resident.play_again(history.turns, history.observations)
            yield resident
        except BaseException:
            close(resident.environment)
            raise

    def _answer(self, resident: Resident, request: Request) -> Outcome:
        [history] = request.histories
        if len(history.observations) > len(history.turns):
            step = Step(None, done=True)
        else:
            step = resident.step(history.turns[-1]) if history.turns else resident.begin()
        extra = {"text": step.text, "reward": step.reward, "done": step.done}
        if not step.done:
            self.held[resident.key] = resident
            return Outcome(extra=extra, kept=True)
        total = resident.total()
        scores = [self._score(reward, resident, request) for reward in rewards_of(resident.key, self.rewards)]
        extra["close"] = close(resident.environment)
        own = {} if total is None else {self.kinds.of(resident.problem).name: total}
        return Outcome(
            {**own, **{name: value for score in scores for name, value in score.parts.items()}},
            extra={**extra, "columns": {name: value for score in scores for name, value in score.extra.items()}},
            logged={name: value for score in scores for name, value in score.logged.items()},
        )

    def _score(self, reward: FunctionReward, resident: Resident, request: Request) -> Outcome:
        """The value of a function that takes `environments`, with the object as its episode left it."""
        assert isinstance(resident.environment, Played)
        problem = with_text(resident.problem, resident.observations[0])
        played = replace(request, problem=problem, histories=(), environments=(resident.environment.made,))
        seed_random(f"{resident.key}/{reward.name}")
        try:
            scores = reward(played)
            if len(scores) != 1:
                raise GrpoError(f"returned {len(scores)} values for 1 completion; return one for each")
        except GrpoError as error:
            raise GrpoError(f"reward {reward.spec}: {error}") from None
        return scores[0]


def rewards_of(key: str, rewards: Mapping[bool, Sequence[FunctionReward]]) -> Sequence[FunctionReward]:
    """Those that count for an episode: of evaluations, where it belongs to one and these have rewards of their own."""
    is_evaluation = key.partition("/")[0] in EVALUATIONS
    return rewards.get(is_evaluation and True in rewards, ())


def close(environment: Environment) -> str:
    """Closes it; returns what went wrong. The episode is over: its reward stands."""
    try:
        environment.close()
    except Exception as error:  # noqa: BLE001  border: people's code
        return f"{type(error).__name__}: {one_line(str(error), 200)}"
    return ""


def seed_random(key: str) -> None:
    """Seeds `random`, and numpy's where it is loaded, so that an episode is the same in every process."""
    random.seed(key)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(random.getrandbits(32))
        random.seed(key)
