"""Rewards: from completions to numbers.

`score(task, groups)` waits; `submit(task, groups)` begins and `.collect()` waits, so that something else can go on
meanwhile. A task that says of itself `trusted = True` cannot hang or harm and is scored right here. Everything else is
scored in worker processes that can be killed (workers.py).
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo.rewards.scoring import Pending, Rewarded, telling_line
from grpo.types import Completion, Group, Problem

if TYPE_CHECKING:
    from grpo.tasks import Task

__all__ = ["Pending", "Rewarded", "score", "score_texts", "submit", "telling_line"]

MOST_SHARED = 4
_shared: list[tuple[Task, Rewarded]] = []
"""Tasks that were scored as they are, and their workers; the latest are kept."""


def score(task: Task, groups: Sequence[Group]) -> list[Group]:
    """Every completion with its reward parts, their sum, the task's traits, and why it has no reward or none earned."""
    return submit(task, groups).collect()


def submit(task: Task, groups: Sequence[Group]) -> Pending:
    """Begins to score."""
    return _rewarded_once(task).submit(groups)


def score_texts(task: Task, pairs: Iterable[tuple[Problem, str]]) -> list[Completion]:
    """Every text as a completion of its problem, scored the way training scores it."""
    nothing = np.zeros(0, dtype=np.int64)
    groups = [Group(problem, nothing, (Completion(text, nothing, nothing, "stop"),), 0) for problem, text in pairs]
    return [group.completions[0] for group in score(task, groups)]


def _rewarded_once(task: Task) -> Rewarded:
    if isinstance(task, Rewarded):
        return task
    for known, with_workers in _shared:
        if known is task:
            return with_workers
    _shared.append((task, Rewarded(task)))
    if len(_shared) > MOST_SHARED:
        _shared.pop(0)[1].close()
    return _shared[-1][1]


@atexit.register
def _close_shared() -> None:
    while _shared:
        _shared.pop()[1].close()
