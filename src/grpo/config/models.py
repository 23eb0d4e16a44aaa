"""Names of models, and the task each one is tried on by default."""

from __future__ import annotations

from pathlib import Path

from grpo.errors import GrpoError

EMBEDDED = {"tiny": "arithmetic", "nano": "arithmetic:easy"}
"""Name of each embedded model, and the task it was made for."""
FETCHED = {"smollm2": "addition"}
"""Name of each model that is fetched once, and the task it is tried on by default."""
DEFAULT_TASK = EMBEDDED | FETCHED


def check_model_name(name: str) -> None:
    """Refuses what cannot be a model, without fetching or reading anything."""
    known = ", ".join(sorted(DEFAULT_TASK))
    if name in DEFAULT_TASK or Path(name).is_dir():
        return
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise GrpoError(f"field model: no file {name}; give a GGUF file, a Hugging Face folder or id, or {known}")
        return
    looks_like_an_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not looks_like_an_id or Path(name).exists():
        raise GrpoError(
            f"field model: no model {name!r}; known are {known}, or give a Hugging Face folder or id (owner/name)"
        )
