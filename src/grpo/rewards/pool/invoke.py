"""One call of a reward: its request, its outcomes, and the classification of errors."""

from __future__ import annotations

import errno
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Literal, Protocol, TypeVar

from grpo.errors import GrpoError, headline, whole_characters
from grpo.rewards.trainer_state import TrainerState
from grpo.tasks.protocol import ChecksCorrectness, HasEpisodeTraits, HasTraits, Task
from grpo.types import Problem

T = TypeVar("T")
Fault = Literal["", "timeout", "crash", "failure", "mistake"]
LARGEST = math.sqrt(3.4028234e38)
"""Largest absolute reward: the largest number whose square is finite in float32."""
TOO_LARGE = f"its square is not finite in float32, so no advantage can be computed; keep rewards below {LARGEST:.1e}"
MAX_TRACEBACK = 4000
"""Characters kept of a traceback: its end."""
PRINTED = "\nprinted: "
"""Between an error and the last output of the call."""


@dataclass(frozen=True)
class History:
    """An episode so far, for those who answer it."""

    key: str
    """Names the episode in its run: purpose, step, problem and sample."""
    turns: tuple[str, ...] = ()
    """Text of each turn of the model."""
    observations: tuple[str, ...] = ()
    """Text that it read after each turn but the last."""


@dataclass(frozen=True)
class Request:
    """A problem and completions to score, or to answer.

    >>> Request(Problem("p", "6*7=", "42"), ("42", "41", "")).only([1]).texts
    ('41',)
    """

    problem: Problem
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...] = ()
    """Of each completion; empty where they are not known."""
    state: TrainerState = field(default_factory=TrainerState)
    """Where training is, for functions that take `trainer_state`."""
    conversations: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """Of each completion, where it is an episode to score: its messages, as in TRL."""
    histories: tuple[History, ...] = ()
    """Of each completion, where it is an episode to answer."""
    environments: tuple[Any, ...] = ()
    """Of each completion: the object that played its episode. Only in the process where it lives."""

    def only(self, rows: Sequence[int]) -> Request:
        def of_rows(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[row] for row in rows) if values else ()

        return replace(
            self,
            texts=of_rows(self.texts),
            tokens=of_rows(self.tokens),
            conversations=of_rows(self.conversations),
            histories=of_rows(self.histories),
            environments=of_rows(self.environments),
        )

    def conversation(self, row: int) -> tuple[Mapping[str, Any], ...]:
        """Empty where the completion is not an episode."""
        return self.conversations[row] if self.conversations else ()

    @property
    def seed(self) -> str:
        """Seeds `random` before a call, which so gives the same result in every process.

        >>> Request(Problem("p", "6*7=", "42"), ("42",), histories=(History("train/3/p/0", ("a", "b")),)).seed
        'train/3/p/0/2'
        """
        if not self.histories:
            return self.problem.id
        return f"{self.histories[0].key}/{len(self.histories[0].turns)}"


@dataclass(frozen=True)
class Outcome:
    """The score of one completion, or what went wrong."""

    parts: Mapping[str, float | None] = field(default_factory=dict)
    traits: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None = None
    """The task's verdict; None where it has none, or this is not the task."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Logged with `log_extra`: a JSON value by column. Of an answer in an episode: what was answered."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """Logged with `log_metric`: the mean over the call, by name."""
    fault: Fault = ""
    """timeout, crash: attributed to the completion, which scores 0. failure: an error of the function; the completion
    stays unscored. mistake: an invalid return value, which stops the run."""
    why: str = ""
    kept: bool = False
    """Whether the worker keeps the episode: the next request with its key goes there."""


class Reward(Protocol):
    """A reward that runs in worker processes: sent there as a pickle, then loaded."""

    name: str
    batched: bool
    """Called once with all completions of a problem, and one by one if that call fails."""
    required: tuple[str, ...]
    """Parameters that the data must have a column for, or that are TRL's; known once it is loaded."""

    def load(self) -> None:
        """Imports everything that calls need. Raises GrpoError where that fails."""
        ...

    def __call__(self, request: Request) -> list[Outcome]:
        """One outcome for each completion. May raise anything: `invoke` handles it."""
        ...


class TaskReward:
    """The task's own checker: reward by part, traits, and whether the answer is correct."""

    batched = False
    required: tuple[str, ...] = ()

    def __init__(self, task: Task, *, rewards: bool = True):
        """`rewards=False`: only traits and correctness, for runs that are trained by other rewards."""
        self.task, self.name, self.rewards = task, f"task {task.name}", rewards

    def load(self) -> None: ...

    def __call__(self, request: Request) -> list[Outcome]:
        task, problem = self.task, request.problem
        score = task.score if self.rewards else lambda problem, text: {}
        of_text = task.traits if isinstance(task, HasTraits) else lambda problem, text: {}
        of_episode = task.episode_traits if isinstance(task, HasEpisodeTraits) else lambda problem, turns: {}
        is_correct = task.is_correct if isinstance(task, ChecksCorrectness) else lambda problem, text: None

        def traits(row: int, text: str) -> Mapping[str, float]:
            turns = [each["content"] for each in request.conversation(row) if each["role"] == "assistant"]
            return {**of_text(problem, text), **(of_episode(problem, turns) if turns else {})}

        return [
            Outcome(score(problem, text), traits(row, text), is_correct(problem, text))
            for row, text in enumerate(request.texts)
        ]


def invoke(reward: Reward, request: Request, *, in_worker: bool = False) -> list[Outcome]:
    """Calls the reward and returns one outcome for each completion. Only the end of the process gets past it, and
    Ctrl-C outside of workers: there only the reward itself raises KeyboardInterrupt."""
    count = len(request.texts)
    try:
        outcomes = [validated(outcome) for outcome in reward(request)]
    except GrpoError as error:  # its message already says what is wrong and what to do
        return [Outcome(fault="mistake", why=str(error))] * count
    except BaseException as error:  # border: people's code, and libraries that time out with a BaseException
        if isinstance(error, KeyboardInterrupt) and not in_worker:
            raise
        fault = _fault(error)
        why = _with_traceback(error) if fault == "failure" else headline(error)
        return [Outcome(fault=fault, why=why)] * count
    if len(outcomes) != count:
        why = f"returned {len(outcomes)} values for {count} completions; return one for each"
        return [Outcome(fault="mistake", why=why)] * count
    return outcomes


def invoke_each(reward: Reward, request: Request) -> list[Outcome]:
    """One call for all completions; if that fails, one call for each."""
    outcomes = invoke(reward, request)
    if not any(outcome.fault for outcome in outcomes):
        return outcomes
    return [outcome for row in range(len(request.texts)) for outcome in invoke(reward, request.only([row]))]


def exhausted(error: BaseException) -> bool:
    """Memory or processes ran out."""
    short = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM)
    return isinstance(error, MemoryError) or short or "can't start new thread" in headline(error)


def error_line(why: str) -> str:
    """The first line of an outcome's reason, which says what happened; a traceback and output may follow."""
    return why.partition("\n")[0]


def _with_traceback(error: BaseException) -> str:
    """The error with the place that raised it, on one line, and its traceback below."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f'File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'
    trace = "".join(traceback.format_exception(error)).rstrip()
    return whole_characters(f"{headline(error)} ({place})\n{trace[-MAX_TRACEBACK:]}")


def _fault(error: BaseException) -> Fault:
    if isinstance(error, TimeoutError) or type(error).__name__.startswith("Timeout"):
        return "timeout"
    return "crash" if exhausted(error) or isinstance(error, SystemExit) else "failure"


def validated(outcome: Outcome) -> Outcome:
    """The outcome with plain numbers; a mistake where a value is not valid."""
    if not isinstance(outcome.parts, Mapping):
        why = f'score returned {_short(outcome.parts)}; return rewards by part, such as {{"correct": 1.0}}'
        return Outcome(fault="mistake", why=why)
    numbers = (*outcome.parts.values(), *outcome.traits.values())
    if type(outcome.correct) in (bool, NoneType) and all(type(one) is float and abs(one) <= LARGEST for one in numbers):
        return outcome
    parts: dict[str, float | None] = {}
    for name, value in outcome.parts.items():
        number = as_number(value)
        if number is None and value is not None:
            return Outcome(fault="mistake", why=f"part {name!r} is {_short(value)}; return a finite number")
        if number is not None and abs(number) > LARGEST:
            return Outcome(fault="mistake", why=f"part {name!r} is {number:g}; {TOO_LARGE}")
        parts[name] = number
    correct = None if outcome.correct is None else as_number(outcome.correct)
    if correct not in (None, 0.0, 1.0) or (correct is None) != (outcome.correct is None):
        return Outcome(
            fault="mistake", why=f"is_correct returned {_short(outcome.correct)}; return True, False or None"
        )
    traits: dict[str, float] = {}
    for name, value in outcome.traits.items():
        number = as_number(value, finite=False)
        if number is None:
            return Outcome(fault="mistake", why=f"trait {name!r} is {_short(value)}; return a number")
        traits[name] = number
    return replace(outcome, parts=parts, traits=traits, correct=None if correct is None else bool(correct))


def as_number(value: Any, *, finite: bool = True) -> float | None:
    """A number of Python, numpy or torch as a float; None for anything else, and where it must be `finite` and is not.

    >>> as_number(True), as_number(0.5), as_number("1"), as_number(float("nan")), as_number([1.0]), as_number(10**400)
    (1.0, 0.5, None, None, None, None)
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, str | bytes) or not hasattr(value, "__float__") or getattr(value, "shape", ()) != ():
        return None
    try:
        number = float(value)
    except (ArithmeticError, ValueError, TypeError):  # border: people's numbers, such as 10**400 or Decimal("sNaN")
        return None
    return number if math.isfinite(number) or not finite else None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
