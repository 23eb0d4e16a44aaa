"""Engines: what turns problems into groups of completions. Episodes: what answers a completion between its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from grpo.types import Fault, Finish, Group, Observation, Problem


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


@dataclass(frozen=True)
class Turn:
    """A turn that has ended: what a completion sampled since its prompt, or since it last read an observation."""

    completion: int
    """Its number in the rollout: sample n % group_size of problem n // group_size."""
    text: str
    """Decoded, without the end token."""
    tokens: int
    """Those it sampled in this turn."""
    finish: Literal["stop", "length", "turn_length"]
    """Other than stop: cut at a limit. Such a turn ends the episode, and calls nothing."""


@dataclass(frozen=True, eq=False)
class Ended:
    """The end of an episode: why it ended, and what its environment gave it."""

    finish: Finish
    last: Observation | None = None
    """What the environment said last; the model does not read it, so it has no tokens."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Rewards of the environment, which add to those of the run."""
    turn_rewards: tuple[float, ...] = ()
    """Reward of each turn, for credit by process; empty where there are none."""
    traits: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)
    """`extra`, `logged`: of reward functions that its environment called, as in `Completion`."""
    fault: Fault = ""
    why: str = ""


class Play(Protocol):
    """The other side of the episodes of one rollout. The engine calls it in this order: `opening` once; then in each
    round `answer`, as turns end, and `collect`, once no row goes on; `close`, however the rollout ended."""

    problems: Sequence[Problem]
    """Those to sample: the problems of the rollout, with what an environment adds to their prompts."""
    prompts: Mapping[int, np.ndarray]
    """int64, by the number of the problem: what the prompts of its completions share, where they differ. `opening`
    gives the rest."""

    def opening(self) -> Mapping[int, Observation]:
        """What completions read before their first turn, where the completions of one group read different texts."""
        ...

    def answer(self, turns: Sequence[Turn]) -> None:
        """Starts to answer these turns, and returns at once."""
        ...

    def collect(self, room: Mapping[int, int]) -> Mapping[int, Observation | Ended]:
        """Waits for the answers to all turns since the last call: what each completion reads next, or the end of its
        episode. `room`: places that each completion has left, for what it reads and samples together."""
        ...

    def close(self) -> None: ...


class Episodes(Protocol):
    """Makes the other side of episodes; `Engine.episodes`. Implemented by `episodes.play.Episodes`."""

    max_turn_tokens: int
    """Most tokens that a completion samples in one turn; 0: no limit."""
    waited: float
    """Seconds that `opening` and `collect` have waited for answers since it was set to 0."""

    def begin(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> Play: ...
