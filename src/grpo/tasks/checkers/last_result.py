"""Runs an expensive check once where `score`, `is_correct` and `why` need its result one after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from grpo.types import Problem

TaskT = TypeVar("TaskT")
Result = TypeVar("Result")


def keep_last_result(check: Callable[[TaskT, Problem, str], Result]) -> Callable[[TaskT, Problem, str], Result]:
    """Decorator of a task's method: a call with the arguments of the last one returns its result.

    >>> class Loud:
    ...     @keep_last_result
    ...     def check(self, problem, text):
    ...         print("checked", text)
    ...         return len(text)
    >>> task, problem = Loud(), Problem("p", "", "")
    >>> task.check(problem, "42"), task.check(problem, "42"), task.check(problem, "7")
    checked 42
    checked 7
    (2, 2, 1)
    """
    last: tuple[TaskT, Problem, str, Result] | None = None

    @wraps(check)
    def checked(task: TaskT, problem: Problem, text: str) -> Result:
        nonlocal last
        kept = last
        if kept is None or kept[0] is not task or kept[1] is not problem or kept[2] != text:
            kept = last = (task, problem, text, check(task, problem, text))
        return kept[3]

    return checked
