"""How a schedule's rows are decoded: on a CPU, through transformers' `generate`, or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grpo.rollout.schedule import Look

Sampled = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens [M, L], log-probabilities [M, L] and lengths [M] of completions."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a completion takes as given in its next turn."""

    tokens: np.ndarray
    """int64: all that it has sampled and read, and what it reads next. A row that was dropped takes them all again."""
    after: int
    """Tokens of them that it has sampled and read before: a row with its keys and values goes on from there."""
    limit: int
    """Tokens in all at which the turn is cut."""


class Decoding(Protocol):
    """Decodes the rows that a `Schedule` lets run. Completions have the schedule's numbers."""

    def change(self, look: Look) -> None:
        """Removes dropped rows; computes the prompts of started ones, and samples their first tokens."""
        ...

    def decode(self, tokens: int) -> list[int]:
        """Samples this number of tokens of every row, or fewer if all end. Returns the completions whose turn has
        ended; a GPU may report one at the next call."""
        ...

    def observe(self, given: Mapping[int, Given]) -> None:
        """These completions have another turn; any others that have ended a turn have ended for good. From the first
        call on, which comes before the first look, rows whose turn has ended keep their keys and values."""
        ...

    def read(self, completions: Sequence[int]) -> Sampled:
        """The results of completions whose turn has ended, from their first token on."""
        ...
