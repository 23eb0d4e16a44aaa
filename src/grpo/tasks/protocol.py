"""The methods of a task: those it must have, and a protocol for each that it may have (docs/tasks.md).

`isinstance(task, HasTraits)` tells whether a task has an optional method, and the type checker follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from grpo.errors import GrpoError
from grpo.types import Problem


class Task(Protocol):
    """The required members of a task.

    A task with `trusted = True` promises that its `score` and `reply` cannot hang, crash or do harm, for any text: they
    run in the trainer's process. All others are pickled and called in worker processes. A task that holds much data
    leaves it out of the pickle with `__getstate__`: a worker calls only `score`, `is_correct`, `traits` and `reply`."""

    name: str

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        """The problems of one training step, a function of its arguments only."""
        ...

    def heldout(self) -> list[Problem]:
        """Fixed problems that `draw` never returns."""
        ...

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        """Reward by part; None where a part does not apply to this completion."""
        ...


REQUIRED = ("name", "draw", "heldout", "score")


@runtime_checkable
class ChecksCorrectness(Protocol):
    def is_correct(self, problem: Problem, text: str) -> bool | None:
        """Whether the answer is right, apart from the reward; None where the task cannot say."""
        ...


@runtime_checkable
class HasReplies(Protocol):
    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """What the model reads after the last of its `turns`; None: the episode is over. It is called after each turn,
        and depends on its arguments only."""
        ...


@runtime_checkable
class HasRequirements(Protocol):
    def check_requirements(self) -> None:
        """Raise GrpoError where something is missing that `score` could need in the middle of a run."""
        ...


@runtime_checkable
class HasTraits(Protocol):
    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        """Properties of a completion that are recorded and not rewarded."""
        ...


@runtime_checkable
class HasEpisodeTraits(Protocol):
    def episode_traits(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        """Properties of an episode, from the texts of its turns; they join its `traits`."""
        ...


@runtime_checkable
class HasSteps(Protocol):
    def steps(self, problem: Problem, text: str) -> Sequence[tuple[int, float]]:
        """(end in the text, reward) of each step of the work."""
        ...


@runtime_checkable
class HasTurnRewards(Protocol):
    def turn_rewards(self, problem: Problem, turns: Sequence[str]) -> Sequence[float]:
        """Reward of each turn of an episode that has ended; `turns` are the texts of the model's turns."""
        ...


@runtime_checkable
class HasReasons(Protocol):
    def why(self, problem: Problem, text: str) -> tuple[str, str]:
        """(the extracted answer, why it is right or wrong), for `grpo check`."""
        ...


@runtime_checkable
class HasProblems(Protocol):
    def problems(self) -> list[Problem]:
        """All problems, where their number is finite."""
        ...


@runtime_checkable
class RecognisesPrompts(Protocol):
    def recognise(self, prompt: str) -> Problem | None:
        """The problem with this prompt; None where the task cannot score it."""
        ...


@runtime_checkable
class TakesTypedPrompts(Protocol):
    def typed(self, question: str) -> Problem:
        """A question without a gold answer, in the form of the task's own prompts."""
        ...


@runtime_checkable
class ExtractsAnswers(Protocol):
    def extract(self, text: str) -> str | None:
        """The answer that the checker reads in a text."""
        ...


def training_rows(task: Task) -> int:
    """Number of different training problems; 0 where it has no end."""
    return len(task.problems()) - len(task.heldout()) if isinstance(task, HasProblems) else 0


def is_trusted(task: Task) -> bool:
    return bool(getattr(task, "trusted", False))


def draw_problems(task: Task, step: int, count: int, seed: int) -> list[Problem]:
    """The problems of a step."""
    problems = task.draw(step, count, seed)
    if len(problems) != count:
        found = len(problems)
        raise GrpoError(f"task {task.name}: in step {step} draw was asked for {count} problems and returned {found}")
    return problems


def assumptions_of(task: Task) -> list[str]:
    """Assumptions to report when a run starts: the task's `notes`."""
    return list(getattr(task, "notes", ()))


def fingerprint_of(task: Task) -> str | Mapping[str, str] | None:
    """Hash of the task's data, or hashes by name, such as a column's; None if its code generates all problems."""
    fingerprint: str | Mapping[str, str] | None = getattr(task, "fingerprint", None)
    return fingerprint
