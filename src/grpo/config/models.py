"""Names of models, and their default tasks."""

from __future__ import annotations

from pathlib import Path

from grpo.errors import GrpoError

EMBEDDED = {"tiny": "arithmetic", "nano": "arithmetic:easy"}
"""Embedded models and their tasks."""
FETCHED = {"smollm2": "addition"}
"""Models that are fetched once, and their tasks."""
DEFAULT_TASK = EMBEDDED | FETCHED


def check_model_name(name: str) -> None:
    """Refuses a name that cannot be a model, without fetching or reading anything."""
    known = ", ".join(sorted(DEFAULT_TASK))
    if name in DEFAULT_TASK or Path(name).is_dir():
        return
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise GrpoError(
                f"field model: file {name} not found; give a GGUF file, a Hugging Face folder or id, or {known}"
            )
        return
    looks_like_an_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not looks_like_an_id or Path(name).exists():
        raise GrpoError(
            f"field model: unknown model {name!r}; use {known}, a GGUF file, or a Hugging Face folder or id "
            "(owner/name)"
        )
