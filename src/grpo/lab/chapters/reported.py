"""Results and settings reported by others, with their sources."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from grpo.config import Config
from grpo.config.presets import PRESETS
from grpo.lab.chapters import shipped
from grpo.lab.chapters.query import Query

_FOUND = tomllib.loads(Path(__file__).with_name("reported.toml").read_text())
RESULTS: tuple[dict[str, Any], ...] = tuple(_FOUND["result"])
SETTINGS: tuple[dict[str, Any], ...] = tuple(_FOUND["setting"])


def results(query: Query) -> dict[str, Any]:
    """Reported results, and the held-out accuracy of the shipped run before and after training."""
    return {"reported": [dict(row) for row in RESULTS], "recorded": _recorded()}


def _recorded() -> dict[str, Any]:
    first, *_, last = shipped.evals()
    return {
        "model": "tiny (1 M parameters), on arithmetic",
        "before": 100 * first["accuracy"],
        "after": 100 * last["accuracy"],
        "steps": last["step"],
        "problems": shipped.config()["evaluation"]["problems"],
    }


def defaults(query: Query) -> list[dict[str, Any]]:
    """The config's defaults and reported settings."""
    config, grpo = Config(), PRESETS["grpo"].settings
    own = {
        "who": "here",
        "g": str(config.group_size),
        "beta": f"{grpo.beta:g}",
        "clip": f"{grpo.clip_low:g} / {grpo.clip_high:g}",
        "updates": str(config.optimizer.epochs * config.optimizer.minibatches),
        "lr": f"{config.lr:g}",
        "source": "read from the config; the learning rate suits the embedded models",
    }
    return [own, *(dict(row) for row in SETTINGS)]
