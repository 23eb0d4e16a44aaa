"""Model names and their folders. The folders here ship with the package; `scripts/make_tiny.py` made them."""

from __future__ import annotations

from pathlib import Path

from grpo.config.models import EMBEDDED, FETCHED, check_model_name


def locate_model(name: str) -> str:
    """The folder of a model name or GGUF file, made on first use; a folder or Hugging Face id unchanged."""
    check_model_name(name)
    if name in EMBEDDED:
        return str(Path(__file__).parent / name)
    if name in FETCHED or name.endswith(".gguf"):
        from grpo.model.hub import gguf

        return str(gguf.smollm2() if name in FETCHED else gguf.converted(Path(name)))
    return name
