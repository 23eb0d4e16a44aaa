"""How a schedule's rows are decoded: on a CPU, through transformers' `generate`, or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from grpo.rollout.schedule import Look

Sampled = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens [M, L], log-probabilities [M, L] and lengths [M] of completions."""


class Decoding(Protocol):
    """Decodes the rows that a `Schedule` lets run. Completions have the schedule's numbers."""

    def change(self, look: Look) -> None:
        """Removes dropped rows; computes the prompts of started ones, and samples their first tokens."""
        ...

    def decode(self, tokens: int) -> list[int]:
        """Samples this number of tokens of every row, or fewer if all end. Returns the completions that have ended; a
        GPU may report one at the next call."""
        ...

    def read(self, completions: Sequence[int]) -> Sampled:
        """The results of completions that have ended."""
        ...
