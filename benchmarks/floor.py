"""Floors of decoding: the time to read all weights, keys and values that the tokens need, and to multiply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpo.model.plan.shape import Shape

MEMORY_BANDWIDTH = 4.3e12
"""Bytes per second of an H200, measured with a copy."""
MATMUL_RATE = 788e12
"""16-bit operations per second of an H200, measured with matrices of 8,192 × 8,192."""
FLOORS = "per_row", "shared", "multiplied"
"""Keys of `floors`."""


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

    def seconds_of_large_matmuls(self, rows_S: np.ndarray) -> float:
        """Time that matmuls take beyond reading their weights, in steps of these numbers of rows. A 16-bit weight has
        two bytes, and two operations for each row. Matmuls do not run while keys and values are read."""
        return float(self.weights * np.maximum(rows_S / MATMUL_RATE - 1 / MEMORY_BANDWIDTH, 0).sum())


def floors(traffic: Traffic, lengths_PG: np.ndarray, prompt_tokens: int) -> dict[str, float]:
    """Highest tokens per second when all completions start together and each leaves at its end.

    Token t of a completion reads the t own tokens before it, and its prompt. "per_row": each completion reads its
    prompt. "shared": the running completions of a group read it together. "multiplied": the same, and large batches
    take the time of their matmuls.
    """
    lengths_PG = lengths_PG.astype(np.int64)
    own, tokens, steps = (lengths_PG * (lengths_PG - 1) // 2).sum(), lengths_PG.sum(), lengths_PG.max()
    shared = traffic.seconds(steps, own + prompt_tokens * lengths_PG.max(1).sum())
    rows_S = len(lengths_PG.flat) - np.searchsorted(np.sort(lengths_PG, axis=None), np.arange(steps), side="right")
    seconds = {
        "per_row": traffic.seconds(steps, own + prompt_tokens * tokens),
        "shared": shared,
        "multiplied": shared + traffic.seconds_of_large_matmuls(rows_S),
    }
    return {name: float(tokens / each) for name, each in seconds.items()}
