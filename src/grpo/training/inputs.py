"""The task, rewards and rows that a caller of `grpo.train` hands over as Python objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.config import Config
from grpo.errors import GrpoError
from grpo.rewards.handed_over import Function, Reward, take_rewards
from grpo.tasks import Task, load_task, take_task
from grpo.tasks.handed_over import PREFIX, Rows, name_of_rows, take_rows
from grpo.tasks.rows import Source


@dataclass(frozen=True)
class Inputs:
    """What was handed over. The config holds a readable name for each."""

    task: Any = None
    """An object or a class; None: the config names the task."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """By the name after `python:` in config.reward."""
    rows: Rows | None = None

    @classmethod
    def take(
        cls, config: Config, task: Any = None, reward: Reward | Sequence[Reward] | None = None, data: Any = None
    ) -> tuple[Config, Inputs]:
        """The config with a name for everything handed over, and the objects. A text means what it means in the
        config."""
        for name, value in (("task", task), ("reward", reward), ("data", data)):
            if value is not None and getattr(config, name):
                raise GrpoError(f"field {name}: set in the config and handed over; give one of them")
        functions: dict[str, Function] = {}
        if reward is not None:
            text, functions = take_rewards(reward)
            config = replace(config, reward=text)
        rows = None if data is None or isinstance(data, str) else take_rows(data)
        if data is not None:
            config = replace(config, data=data if rows is None else name_of_rows(rows))
        if isinstance(task, str):
            return replace(config, task=task), cls(None, functions, rows)
        if task is not None:
            name = task.__name__ if isinstance(task, type) else getattr(task, "name", type(task).__name__)
            config = replace(config, task=f"{PREFIX}{name}")
        return config, cls(task, functions, rows)

    def load_task(self, config: Config) -> Task:
        if self.task is not None:
            return take_task(self.task, Source(config.data, config.dataset, self.rows))
        return load_task(config.task, config.data, config.dataset, self.rows)
