"""Model names. The folders here are the models that ship with the package; `scripts/make_tiny.py` made them."""

from __future__ import annotations

from pathlib import Path

from grpo.errors import GrpoError

EMBEDDED = {"tiny": "arithmetic", "nano": "arithmetic:easy"}
"""Name of each embedded model, and the task it was made for."""


def locate_model(name: str) -> str:
    """The folder of an embedded model; a folder or Hugging Face id as it is."""
    if name in EMBEDDED:
        return str(Path(__file__).parent / name)
    looks_like_an_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if Path(name).is_dir() or (looks_like_an_id and not Path(name).exists()):
        return name
    known = ", ".join(sorted(EMBEDDED))
    raise GrpoError(
        f"field model: no model {name!r}; known are {known}, or give a Hugging Face folder or id (owner/name)"
    )
