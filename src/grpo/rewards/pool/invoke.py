"""One call of a reward: what it is given, what comes of it, and what is made of a call that goes wrong."""

from __future__ import annotations

import errno
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Literal, Protocol

from grpo.errors import GrpoError
from grpo.tasks.protocol import ChecksCorrectness, HasTraits, Task
from grpo.types import Problem

Fault = Literal["", "timeout", "crash", "failure", "mistake"]
LONGEST_WHY = 4000
"""Characters kept of what went wrong: the end of a traceback tells most."""


@dataclass(frozen=True)
class Answers:
    """A problem and completions of it: what a reward is called with.

    >>> Answers(Problem("p", "6*7=", "42"), ("42", "41", "")).only([1]).texts
    ('41',)
    """

    problem: Problem
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...] = ()
    """Of each completion; empty where they are not known."""
    step: int = 0
    """Optimizer steps the policy had taken."""

    def only(self, rows: Sequence[int]) -> Answers:
        tokens = tuple(self.tokens[row] for row in rows) if self.tokens else ()
        return replace(self, texts=tuple(self.texts[row] for row in rows), tokens=tokens)


@dataclass(frozen=True)
class Outcome:
    """What came of scoring one completion."""

    parts: Mapping[str, float | None] = field(default_factory=dict)
    traits: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None = None
    """The task's verdict; None where it has none, or this is not the task."""
    fault: Fault = ""
    """timeout and crash are put down to the completion, which scores 0; failure to the function, and the completion
    stays unscored; a mistake in what the function returns stops the run."""
    why: str = ""


class Reward(Protocol):
    """Travels to the workers by pickle and is loaded there."""

    name: str
    batched: bool
    """Called once with all completions of a problem, and one by one only where that fails."""

    def load(self) -> None:
        """Imports what the calls need. Raises GrpoError where that cannot be done."""
        ...

    def __call__(self, answers: Answers) -> list[Outcome]:
        """One outcome for each completion; whatever it raises is dealt with by the caller."""
        ...


class TaskReward:
    """The task's own check: reward by part, traits, and whether the answer is correct."""

    batched = False

    def __init__(self, task: Task, *, rewards: bool = True):
        """`rewards=False`: only traits and correctness, for runs that are trained by other rewards."""
        self.task, self.name, self.rewards = task, f"task {task.name}", rewards

    def load(self) -> None: ...

    def __call__(self, answers: Answers) -> list[Outcome]:
        task, problem = self.task, answers.problem
        score = task.score if self.rewards else lambda problem, text: {}
        traits = task.traits if isinstance(task, HasTraits) else lambda problem, text: {}
        is_correct = task.is_correct if isinstance(task, ChecksCorrectness) else lambda problem, text: None
        return [
            Outcome(score(problem, text), traits(problem, text), is_correct(problem, text)) for text in answers.texts
        ]


def call(reward: Reward, answers: Answers) -> list[Outcome]:
    """One outcome for each completion, whatever happens short of the end of the process."""
    count = len(answers.texts)
    try:
        outcomes = reward(answers)
    except KeyboardInterrupt:
        raise
    except GrpoError as error:  # already says what is wrong and what to do
        return [Outcome(fault="mistake", why=str(error))] * count
    except BaseException as error:  # noqa: BLE001  border: people's code, and libraries that time out with a BaseException
        fault = _fault(error)
        why = "".join(traceback.format_exception(error)) if fault == "failure" else f"{type(error).__name__}: {error}"
        return [Outcome(fault=fault, why=why[-LONGEST_WHY:])] * count
    if len(outcomes) != count:
        why = f"returned {len(outcomes)} values for {count} completions; return one for each"
        return [Outcome(fault="mistake", why=why)] * count
    return [checked(outcome) for outcome in outcomes]


def call_each(reward: Reward, answers: Answers) -> list[Outcome]:
    """All at once if that goes well, else one by one."""
    outcomes = call(reward, answers)
    if not any(outcome.fault for outcome in outcomes):
        return outcomes
    return [outcome for row in range(len(answers.texts)) for outcome in call(reward, answers.only([row]))]


def exhausted(error: BaseException) -> bool:
    """Memory or processes ran out."""
    short = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM)
    return isinstance(error, MemoryError) or short or "can't start new thread" in str(error)


def _fault(error: BaseException) -> Fault:
    if isinstance(error, TimeoutError) or type(error).__name__.startswith("Timeout"):
        return "timeout"
    return "crash" if exhausted(error) or isinstance(error, SystemExit) else "failure"


def checked(outcome: Outcome) -> Outcome:
    """The outcome with plain numbers; a mistake where a value is not valid."""
    numbers = (*outcome.parts.values(), *outcome.traits.values())
    if type(outcome.correct) in (bool, NoneType) and all(type(one) is float and math.isfinite(one) for one in numbers):
        return outcome
    parts: dict[str, float | None] = {}
    for name, value in outcome.parts.items():
        number = as_number(value)
        if number is None and value is not None:
            return Outcome(fault="mistake", why=f"part {name!r} is {_short(value)}; return a finite number")
        parts[name] = number
    correct = None if outcome.correct is None else as_number(outcome.correct)
    if correct not in (None, 0.0, 1.0) or (correct is None) != (outcome.correct is None):
        return Outcome(
            fault="mistake", why=f"is_correct returned {_short(outcome.correct)}; return True, False or None"
        )
    traits = {name: float(value) for name, value in outcome.traits.items()}
    return replace(outcome, parts=parts, traits=traits, correct=None if correct is None else bool(correct))


def as_number(value: Any) -> float | None:
    """A finite number, of Python, numpy or torch; None for everything else.

    >>> as_number(True), as_number(0.5), as_number("1"), as_number(float("nan")), as_number([1.0])
    (1.0, 0.5, None, None, None)
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, str | bytes) or not hasattr(value, "__float__") or getattr(value, "shape", ()) != ():
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
