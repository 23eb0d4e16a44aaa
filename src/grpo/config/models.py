"""Names of models, their default tasks, and settings that train them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError

EMBEDDED = {"tiny": "arithmetic", "nano": "arithmetic:easy", "calculator": "calculator", "guess": "guess"}
"""Embedded models and their tasks."""
FETCHED = {"smollm2": "addition"}
"""Models that are fetched once, and their tasks."""
DEFAULT_TASK = EMBEDDED | FETCHED

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "calculator": {"algorithm": "dr_grpo", "steps": 60, "lr": 1e-4},
    "guess": {"algorithm": "dr_grpo", "steps": 300, "prompts_per_step": 30, "lr": 1e-3},
}
"""Defaults of runs that train these embedded models, each on the task of the same name."""


def recipe(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Defaults that differ from the usual ones, for a config of which these fields are given: those of its model, or
    of the model that its task has where no model is given.

    >>> recipe({"task": "calculator"})["model"], recipe({"task": "calculator", "model": "smollm2"})
    ('calculator', {})
    """
    name = given.get("model", given.get("task"))
    settings = RECIPES.get(name) if isinstance(name, str) else None
    return {"model": name, **settings} if settings else {}


def check_model_name(name: str, field: str = "model", runs: Sequence[str] = ()) -> None:
    """Refuses a name that cannot be a model, without fetching or reading anything. `runs`: names of runs, which the
    command would take too."""
    known = ", ".join(sorted(DEFAULT_TASK))
    if name in DEFAULT_TASK or Path(name).is_dir():
        return
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise GrpoError(
                f"field {field}: file {name} not found; give a GGUF file, a Hugging Face folder or id, or {known}"
            )
        return
    looks_like_an_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not looks_like_an_id or Path(name).exists():
        near = difflib.get_close_matches(name[:60], runs, n=3)
        hint = f"did you mean the run {' or '.join(near)}? Or use" if near else "use a run, or" if runs else "use"
        raise GrpoError(
            f"field {field}: unknown model {name!r}; {hint} {known}, a GGUF file, or a Hugging Face folder or id "
            "(owner/name)"
        )
