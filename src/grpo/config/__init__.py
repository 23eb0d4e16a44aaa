"""All options: their names, defaults and rules, and how flags and TOML files become a `Config`. Imports no torch."""

from grpo.config.presets import PRESETS, Loss
from grpo.config.schema import (
    Checkpoints,
    Config,
    Critic,
    Dataset,
    Evaluation,
    Lora,
    Optimizer,
    Scoring,
    SftConfig,
    System,
)

__all__ = [
    "PRESETS",
    "Checkpoints",
    "Config",
    "Critic",
    "Dataset",
    "Evaluation",
    "Lora",
    "Loss",
    "Optimizer",
    "Scoring",
    "SftConfig",
    "System",
]
