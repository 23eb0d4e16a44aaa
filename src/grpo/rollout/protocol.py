"""Engines: what turns problems into groups of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo.types import Group, Problem


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are sampled.

    The noise of a token is keyed by (seed, purpose, step, problem id, sample, position): a problem gets the same
    completions in any batch.
    """

    seed: int
    temperature: float
    """0: greedy. Recorded log-probabilities are those of the full distribution at this temperature (at 1 if greedy)."""
    max_new_tokens: int
    step: int = 0
    purpose: str = "train"
    """Keeps the noise of training, evaluation and other uses apart."""
    top_k: int = 0
    """Sample among the k likeliest tokens only; 0: all. Not for training: log-probabilities ignore it."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability. Not for training."""
    min_p: float = 0.0
    """Sample among tokens with at least this share of the likeliest one's probability. Not for training."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, which keeps them."""

    @property
    def restricted(self) -> bool:
        """Whether some tokens of positive probability cannot be sampled."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


class SamplingEngine(Protocol):
    """Implemented by `builtin.Engine` (the policy's weights) and `scripted.ScriptedEngine` (fixed texts)."""

    def sample(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> list[Group]:
        """`group_size` completions of each problem, in order."""
        ...
