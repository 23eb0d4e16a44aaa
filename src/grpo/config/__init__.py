"""All options: names, defaults, presets and rules; reads flags and TOML files. Imports no torch."""

from grpo.config.presets import PRESETS
from grpo.config.schema import Config, SftConfig
from grpo.config.sections import (
    Checkpoints,
    Critic,
    Dataset,
    Episodes,
    Evaluation,
    Lora,
    Loss,
    Optimizer,
    Scale,
    Scoring,
    System,
)

__all__ = [
    "PRESETS",
    "Checkpoints",
    "Config",
    "Critic",
    "Dataset",
    "Episodes",
    "Evaluation",
    "Lora",
    "Loss",
    "Optimizer",
    "Scale",
    "Scoring",
    "SftConfig",
    "System",
]
