"""The task, rewards, rows, tools and environment that a caller of `grpo.train` hands over as Python objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from grpo.config import Config, SftConfig
from grpo.config.leaf import shown
from grpo.episodes.handed_over import take_environment, take_tools
from grpo.errors import GrpoError
from grpo.rewards.handed_over import Function, Reward, take_rewards
from grpo.tasks import Task, load_task, take_task
from grpo.tasks.handed_over import PREFIX, Rows, name_of_rows, take_heldout, take_rows
from grpo.tasks.rows import Source

AnyConfig = TypeVar("AnyConfig", Config, SftConfig)


@dataclass(frozen=True)
class Inputs:
    """What was handed over. The config holds a readable name for each."""

    task: Any = None
    """An object or a class; None: the config names the task."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """By the name after `python:` in config.reward."""
    eval_functions: Mapping[str, Function] = field(default_factory=dict)
    """The same for config.evaluation.reward."""
    rows: Rows | None = None
    heldout_rows: Rows | None = None
    tools: Mapping[str, Function] = field(default_factory=dict)
    """By the name after `python:` in config.episodes.tools."""
    env: Mapping[str, Function] = field(default_factory=dict)
    """The same for config.episodes.env."""

    @classmethod
    def take(
        cls,
        config: Config,
        task: Any = None,
        reward: Reward | Sequence[Reward] | None = None,
        data: Any = None,
        eval_data: Any = None,
        eval_reward: Reward | Sequence[Reward] | None = None,
        tools: str | Function | Sequence[str | Function] | None = None,
        env: str | type | Mapping[str, str | type] | None = None,
    ) -> tuple[Config, Inputs]:
        """The config with a name for everything handed over, and the objects. A text means what it means in the
        config."""
        if not isinstance(config, Config):
            raise GrpoError(f"field config: expected grpo.Config(…); got {shown(config)}")
        _refuse_both("task", config.task, task)
        _refuse_both("reward", config.reward, reward)
        _refuse_both("evaluation.reward", config.evaluation.reward, eval_reward)
        functions: dict[str, Function] = {}
        eval_functions: dict[str, Function] = {}
        if reward is not None:
            text, functions = take_rewards(reward)
            config = replace(config, reward=text)
        if eval_reward is not None:
            text, eval_functions = take_rewards(eval_reward)
            config = replace(config, evaluation=replace(config.evaluation, reward=text))
        config, given, environment = _take_episodes(config, tools, env)
        config, rows = take_data(config, data)
        config, heldout_rows = _take_eval_data(config, eval_data)
        if isinstance(task, str):
            config, task = replace(config, task=task), None
        if task is not None:
            name = task.__name__ if isinstance(task, type) else getattr(task, "name", type(task).__name__)
            config = replace(config, task=f"{PREFIX}{name}")
        return config, cls(task, functions, eval_functions, rows, heldout_rows, given, environment)

    def load_task(self, config: Config, tools: Sequence[Mapping[str, Any]] = ()) -> Task:
        """`tools`: schemas of those that prompts describe."""
        if self.task is not None:
            source = Source(config.data, config.dataset, self.rows, self.heldout_rows, config.model, tools)
            return take_task(self.task, source)
        return load_task(config.task, config.data, config.dataset, self.rows, self.heldout_rows, config.model, tools)


def take_data(config: AnyConfig, data: Any) -> tuple[AnyConfig, Rows | None]:
    """The config with a name for the rows handed over, and the rows."""
    _refuse_both("data", config.data, data)
    if data is None or isinstance(data, str):
        return replace(config, data=data or config.data), None
    rows = take_rows(data)
    return replace(config, data=name_of_rows(rows)), rows


def _take_eval_data(config: Config, data: Any) -> tuple[Config, Rows | None]:
    """The same for held-out rows; their name is the config's `dataset.heldout`."""
    if data is None:
        return config, None
    if config.dataset.heldout:
        raise GrpoError("field eval_data: dataset.heldout is set in the config too; give one of them")
    rows = None if isinstance(data, str) else take_heldout(data)
    name = data if rows is None else name_of_rows(rows)
    return replace(config, dataset=replace(config.dataset, heldout=name)), rows


def _take_episodes(
    config: Config, tools: Any, env: Any
) -> tuple[Config, Mapping[str, Function], Mapping[str, Function]]:
    """The config with names for tools and environment handed over, and these by name."""
    _refuse_both("episodes.tools", config.episodes.tools, tools)
    _refuse_both("episodes.env", config.episodes.env, env)
    names, functions = (config.episodes.tools, {}) if tools is None else take_tools(tools)
    name, classes = (config.episodes.env, {}) if env is None else take_environment(env)
    return replace(config, episodes=replace(config.episodes, tools=names, env=name)), functions, classes


def _refuse_both(name: str, configured: str, handed_over: Any) -> None:
    if configured and handed_over is not None:
        raise GrpoError(f"field {name}: set in the config and handed over; give one of them")
