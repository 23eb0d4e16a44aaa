"""The longest sequence that a model is run with, from its config."""

from __future__ import annotations

from typing import Any


def position_limit(config: Any) -> int | None:
    """Most tokens of a sequence; None: any number. LongRoPE (Phi-3) has another rotation for all tokens of a sequence
    that is longer than the original limit: sampler and trainer would disagree beyond it."""
    limit = getattr(config, "max_position_embeddings", None)
    if not is_longrope(config):
        return limit
    original = "original_max_position_embeddings"
    return config.rope_parameters.get(original) or getattr(config, original, limit)


def is_longrope(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type") == "longrope"


def limit_in_words(config: Any, name: str) -> str:
    """The limit for messages, with its reason where the config states a larger one, such as "the 4096 positions of
    phi-3 (its original length: LongRoPE rotates all tokens of longer sequences differently)"."""
    reason = " (its original length: LongRoPE rotates all tokens of longer sequences differently)"
    return f"the {position_limit(config)} positions of {name}{reason if is_longrope(config) else ''}"
