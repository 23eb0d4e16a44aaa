"""Sampling of tokens on a GPU, and the sampled completions, at fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.batch import Capacity, DecodeBatch
from grpo.rollout.decoding import Given
from grpo.rollout.noise import give


@dataclass(eq=False)
class Results:
    """Noise and sampled tokens by completion; the last row of each is the spare one's."""

    noise_NL: torch.Tensor
    tokens_NL: torch.Tensor
    logp_NL: torch.Tensor
    length_N: torch.Tensor
    """0 until the completion, or its turn, ends."""
    limit_N: torch.Tensor
    """Tokens of each at which it is cut."""
    ends: torch.Tensor
    """End tokens."""

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that a decoding step changes."""
        return [self.tokens_NL, self.logp_NL, self.length_N]


class TokenSampler:
    def __init__(self, policy: Policy, capacity: Capacity):
        floats = partial(torch.zeros, dtype=torch.float32, device=policy.device)
        integers = partial(torch.zeros, dtype=torch.int32, device=policy.device)
        ends = torch.tensor(sorted(policy.end_tokens), dtype=torch.int32, device=policy.device)
        N, L, B = capacity.completions + 1, capacity.new_tokens, capacity.rows
        self.results = Results(floats(N, L), integers(N, L), floats(N, L), integers(N), integers(N), ends)
        self.inverse_temperature = floats(1)
        """0: greedy."""
        parts = -(-policy.model.config.vocab_size // kernels.LOGITS_PER_PROGRAM)
        self.scratch = floats(B, parts), floats(B, parts)

    def start(self, noise_NL: torch.Tensor, temperature: float) -> None:
        N, L = noise_NL.shape
        self.inverse_temperature.fill_(1 / temperature if temperature else 0.0)
        self.results.noise_NL[:N, :L].copy_(noise_NL)
        self.results.length_N.zero_()
        self.results.limit_N.fill_(L)

    def observe(self, given: Mapping[int, Given]) -> None:
        """Another turn of these completions."""
        results = self.results
        index, limit = (
            torch.tensor(values, dtype=torch.int64, device=results.limit_N.device)
            for values in (list(given), [row.limit for row in given.values()])
        )
        give(results.noise_NL, {completion: row.tokens for completion, row in given.items()})
        results.length_N[index], results.limit_N[index] = 0, limit.int()

    def sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor, batch: DecodeBatch) -> None:
        """The next token of every row; row b reads the logits at source_B[b]."""
        kernels.sample_tokens(logits_UV, source_B, batch, self.results, self.inverse_temperature, self.scratch)

    def read(self, completions: Sequence[int], longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, log-probabilities and lengths; `longest`: most tokens of these completions."""
        results = self.results
        index = torch.tensor(completions, device=results.length_N.device)
        found = results.tokens_NL[:, :longest], results.logp_NL[:, :longest], results.length_N
        tokens_NL, logp_NL, length_N = (tensor.index_select(0, index).cpu().numpy() for tensor in found)
        return tokens_NL, logp_NL, length_N
