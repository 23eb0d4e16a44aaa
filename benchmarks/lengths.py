"""Lengths of completions, drawn once and the same for every engine."""

from __future__ import annotations

import numpy as np

DISTRIBUTIONS = ("geometric", "uniform")
SEED = 7


def draw_lengths(distribution: str, count: int, limit: int) -> np.ndarray:
    """The length of each completion: `limit`, or drawn with a mean of about a third of it.

    "geometric" has the long tail of real completions and is cut at the limit; "uniform" ends at two thirds of it.
    """
    rng = np.random.default_rng(SEED)
    if not distribution:
        return np.full(count, limit)
    if distribution == "uniform":
        return rng.integers(1, max(2, 2 * limit // 3), count)
    chance = 1.0 / limit
    while (1 - (1 - chance) ** limit) / chance > limit / 3:  # the mean of the cut distribution
        chance *= 1.01
    return rng.geometric(chance, count).clip(1, limit)
