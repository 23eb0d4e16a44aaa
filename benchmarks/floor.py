"""Memory-traffic floor of decoding: the time to read all weights, keys and values that the tokens need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo.model.plan.shape import Shape

MEMORY_BANDWIDTH = 4.3e12
"""Bytes per second of an H200, measured with a copy."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that decoding reads."""

    weights: float
    """All weights, read once for a token of every row."""
    keys: float
    """Keys and values of one token, in all layers."""

    @classmethod
    def of(cls, shape: Shape, bytes_each: int = 2) -> Traffic:
        return cls(
            weights=bytes_each * (shape.linear_parameters + shape.embedding),
            keys=bytes_each * 2 * shape.layers * shape.kv_width,
        )

    def seconds(self, steps: float, cached_tokens: float) -> float:
        """Shortest time of this many decoding steps that read this many cached tokens in all."""
        return (steps * self.weights + cached_tokens * self.keys) / MEMORY_BANDWIDTH


def floors(traffic: Traffic, lengths_PG: np.ndarray, prompt_tokens: int) -> dict[str, float]:
    """Highest tokens per second when all completions start together and each leaves at its end.

    Token t of a completion reads the t own tokens before it, and its prompt. "per_row": each completion reads its
    prompt. "shared": the running completions of a group read it together.
    """
    lengths_PG = lengths_PG.astype(np.int64)
    own = (lengths_PG * (lengths_PG - 1) // 2).sum()
    prompts = {"per_row": lengths_PG.sum(), "shared": lengths_PG.max(1).sum()}
    return {
        name: float(lengths_PG.sum() / traffic.seconds(lengths_PG.max(), own + prompt_tokens * times))
        for name, times in prompts.items()
    }
