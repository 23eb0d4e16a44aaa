"""Rewards for the steps of a completion: maps the ends of steps in the text to tokens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from grpo.errors import GrpoError
from grpo.tasks.protocol import HasSteps, Task
from grpo.types import Completion, Group, Problem, changed

Decode = Callable[[list[np.ndarray]], list[str]]


def step_marks(task: Task) -> Callable[[Problem, str], Sequence[tuple[int, float]]]:
    """The task's method `steps`. Raises GrpoError where it has none."""
    if not isinstance(task, HasSteps):
        raise GrpoError(f'field loss.credit: "process" needs a task with the method steps; task {task.name} has none')
    return task.steps


def score_steps(task: Task, groups: Sequence[Group], decode: Decode) -> list[Group]:
    """+ (token, reward) of each step. `decode` turns rows of tokens into texts."""
    marks = step_marks(task)

    def with_steps(group: Group, completion: Completion) -> Completion:
        marked = marks(group.problem, completion.text)
        for _, reward in marked:
            if not isinstance(reward, int | float) or not math.isfinite(reward):
                raise GrpoError(
                    f"task {task.name}, problem {group.problem.label}: step reward {reward!r} is not a finite number"
                )
        places = last_tokens(completion, [end for end, _ in marked], decode)
        return changed(
            completion, steps=tuple((place, float(reward)) for place, (_, reward) in zip(places, marked, strict=True))
        )

    return [
        replace(group, completions=tuple(with_steps(group, completion) for completion in group.completions))
        for group in groups
    ]


def last_tokens(completion: Completion, ends: Sequence[int], decode: Decode) -> list[int]:
    """The token that completes the text up to each end; the end of the text maps to the last token (the end token).

    >>> done = Completion("12,3", np.array([0, 1, 2, 9]), np.zeros(4), "stop")
    >>> pieces = {0: "12", 1: ",", 2: "3", 9: ""}
    >>> last_tokens(done, [1, 2, 3, 4], lambda rows: ["".join(pieces[token] for token in row) for row in rows])
    [0, 0, 1, 3]
    """
    lengths = [len(text) for text in decode([completion.tokens[: place + 1] for place in range(len(completion))])]
    last = len(completion) - 1
    return [last if end >= len(completion.text) else min(bisect_left(lengths, end), last) for end in ends]
