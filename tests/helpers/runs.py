"""Configs of short runs."""

from __future__ import annotations

from pathlib import Path

from grpo.config import Config, Evaluation, System


def small(tmp_path: Path, **changes: object) -> Config:
    """Three quick steps of the smallest model."""
    settings = {
        "model": "nano",
        "steps": 3,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 32,
        "checkpoint_every": 0,
        "evaluation": Evaluation(every=0, problems=20, probes=2),
        "system": System(runs=str(tmp_path), threads=1),
    }
    return Config(**(settings | changes))
