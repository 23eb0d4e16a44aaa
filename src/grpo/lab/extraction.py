"""Extracted answers of completions, for tasks with `extract`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from grpo.errors import GrpoError
from grpo.tasks import load_task
from grpo.tasks.protocol import ExtractsAnswers


@lru_cache(maxsize=16)
def extractor(task_name: str) -> Callable[[str], str | None]:
    """The task's `extract`; a function that returns None if it has none or cannot be loaded."""
    try:
        task = load_task(task_name)
    except (GrpoError, ImportError, OSError):  # border: the run's task or dataset may not be on this machine
        return lambda text: None
    return task.extract if isinstance(task, ExtractsAnswers) else lambda text: None
