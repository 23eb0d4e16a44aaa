"""Tasks: what to ask, and how an answer is checked. One file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from grpo.errors import GrpoError
from grpo.tasks.arithmetic import Arithmetic
from grpo.tasks.code import Code
from grpo.types import Problem


class Task(Protocol):
    """A task may say `trusted = True` of itself: its check cannot hang, crash or harm, whatever the text, and runs in
    the trainer's process. All others are sent to worker processes by pickle; one that holds much data keeps it at home
    with `__getstate__`, since only `score` and `traits` are called there."""

    name: str

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        """The problems of one training step: a function of its arguments alone."""
        ...

    def heldout(self) -> list[Problem]:
        """Fixed problems that `draw` never returns."""
        ...

    def recognise(self, prompt: str) -> Problem | None:
        """A prompt somebody typed, as a problem that can be scored; None where the answer cannot be known."""
        ...

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        """Reward by part; None where a part does not apply to this completion."""
        ...

    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        """What is worth watching but not paid for; trait x is recorded as metric x_share. Often empty."""
        ...


TASKS: dict[str, Callable[[str], Task]] = {"arithmetic": Arithmetic, "code": Code}
"""Task name -> what makes it from the part of the name after the colon: `arithmetic:easy`."""


def load_task(name: str) -> Task:
    base, _, variant = name.partition(":")
    if base not in TASKS:
        raise GrpoError(f"field task: no task {name!r}; known are {', '.join(sorted(TASKS))} (and arithmetic:easy)")
    return TASKS[base](variant)
