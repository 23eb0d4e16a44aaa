"""The longest sequence that a model is run with, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def position_limit(config: Any) -> int | None:
    """Most tokens of a sequence; None: any number. LongRoPE (Phi-3) has another rotation for all tokens of a sequence
    that is longer than the original limit: sampler and trainer would disagree beyond it."""
    limit, rope = getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return limit
    original = "original_max_position_embeddings"
    return rope.get(original) or getattr(config, original, limit)


def limit_of_file(config: Mapping[str, Any]) -> int:
    """The limit that a config.json states; 0: none. Older files call the rotation's parameters rope_scaling and type.

    >>> limit_of_file({"max_position_embeddings": 131072, "rope_scaling": None})
    131072
    >>> older = {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}
    >>> limit_of_file({"max_position_embeddings": 131072} | older)
    4096
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = {"rope_type": rope.get("type"), **rope} if isinstance(rope, dict) else {}
    limit = position_limit(SimpleNamespace(**{**config, "rope_parameters": rope}))
    return limit if isinstance(limit, int) and limit > 0 else 0


def limit_in_words(config: Any, name: str) -> str:
    """The limit for messages, with its reason where the config states a larger one, such as "the 4096 positions of
    phi-3 (its original length: LongRoPE rotates all tokens of longer sequences differently)"."""
    limit, reason = position_limit(config), ""
    if limit != getattr(config, "max_position_embeddings", limit):
        reason = " (its original length: LongRoPE rotates all tokens of longer sequences differently)"
    return f"the {limit} positions of {name}{reason}"
