"""Group Relative Policy Optimization: train language models, and see why every update happened.

>>> from grpo.core import group_advantages, policy_loss, kl_estimate       # the mathematics, torch only
>>> from grpo import Config  # grpo.train(Config(model=…)) trains
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.config import Config as Config
    from grpo.config import SftConfig as SftConfig
    from grpo.errors import GrpoError as GrpoError
    from grpo.record.events import Callback as Callback
    from grpo.record.records import Records as Records
    from grpo.record.store import Run as Run
    from grpo.training.loop import train as train
    from grpo.training.sft import sft as sft
    from grpo.types import Batch as Batch
    from grpo.types import Completion as Completion
    from grpo.types import Group as Group
    from grpo.types import Problem as Problem

__all__ = [
    "Batch",
    "Callback",
    "Completion",
    "Config",
    "Group",
    "GrpoError",
    "Problem",
    "Records",
    "Run",
    "SftConfig",
    "sft",
    "train",
]

_HOMES = {
    "Batch": "types",
    "Callback": "record.events",
    "Completion": "types",
    "Config": "config",
    "Group": "types",
    "GrpoError": "errors",
    "Problem": "types",
    "Records": "record.records",
    "Run": "record.store",
    "SftConfig": "config",
    "sft": "training.sft",
    "train": "training.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `grpo --help` and the record do not import torch."""
    if name in _HOMES:
        return getattr(import_module(f"grpo.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'grpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion in a notebook."""
    return __all__
