"""Reads the turns that rows have sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo.model.policy import Policy
from grpo.rollout.decoding import Decoding
from grpo.rollout.stop_strings import StopStrings


@dataclass(frozen=True, eq=False)
class SampledTurn:
    """What a row sampled, from a place of its own on: a whole completion, or one turn of an episode."""

    text: str
    """Without the end token."""
    tokens: np.ndarray
    logprobs: np.ndarray
    stopped: bool
    """By an end token or a stop string, and not at a limit."""


class TurnReader:
    def __init__(self, decoding: Decoding, policy: Policy, stop: StopStrings | None):
        self.decoding, self.policy, self.stop = decoding, policy, stop

    def read(self, completions: Sequence[int], starts: Sequence[int] | None = None) -> list[SampledTurn]:
        """The turns of completions whose turn has ended. They may be longer than stop strings allow, and are cut.
        `starts`: places before each turn; none by default."""
        tokens_NL, logp_NL, end_N = self.decoding.read(completions)
        start_N = np.zeros_like(end_N) if starts is None else np.array(starts)
        stopped_N = np.isin(tokens_NL[np.arange(len(tokens_NL)), end_N - 1], list(self.policy.end_tokens))
        tokens_NL, text_end_N = tokens_NL.astype(np.int64), end_N - stopped_N
        if self.stop is not None:
            cut_N, found_N = self.stop.cut(_between(tokens_NL, start_N, text_end_N))
            text_end_N = start_N + cut_N
            end_N, stopped_N = np.where(found_N, text_end_N, end_N), stopped_N | found_N
        texts = self.policy.texts(_between(tokens_NL, start_N, text_end_N))
        tokens, logprobs = _between(tokens_NL, start_N, end_N), _between(logp_NL, start_N, end_N)
        return [SampledTurn(*turn) for turn in zip(texts, tokens, logprobs, stopped_N.tolist(), strict=True)]


def _between(rows_NL: np.ndarray, start_N: np.ndarray, end_N: np.ndarray) -> list[np.ndarray]:
    return [row[start:end] for row, start, end in zip(rows_NL, start_N.tolist(), end_N.tolist(), strict=True)]
