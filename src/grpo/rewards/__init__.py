"""Rewards: from completions to numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo.errors import GrpoError
from grpo.tasks import Task
from grpo.types import Completion, Group, Problem


def score(task: Task, groups: Sequence[Group]) -> list[Group]:
    """Every completion with its reward parts, their sum, and the task's traits."""
    return [
        replace(group, completions=tuple(_scored(task, group.problem, completion) for completion in group.completions))
        for group in groups
    ]


def total_reward(task: Task, problem: Problem, text: str) -> float | None:
    return _total(task.score(problem, text), task, problem)


def _scored(task: Task, problem: Problem, completion: Completion) -> Completion:
    parts = task.score(problem, completion.text)
    reward = _total(parts, task, problem)
    # The least a task must have is draw, heldout and score.
    traits = task.traits(problem, completion.text) if hasattr(task, "traits") else {}
    return replace(completion, parts=parts, reward=reward, traits=traits)


def _total(parts: Mapping[str, float | None], task: Task, problem: Problem) -> float | None:
    """Sum of the parts that apply; None when none does."""
    applying = {name: value for name, value in parts.items() if value is not None}
    for name, value in applying.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise GrpoError(
                f"task {task.name}, problem {problem.id}: part {name!r} is {value!r}; return a finite number"
            )
    return float(sum(applying.values())) if applying else None
