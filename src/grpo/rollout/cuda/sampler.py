"""Sampling of tokens on a GPU, and the sampled completions by slot, at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.slots import Capacity, DecodeBatch


@dataclass(eq=False)
class Results:
    """Noise and sampled tokens by slot."""

    noise_SL: torch.Tensor
    tokens_SL: torch.Tensor
    logp_SL: torch.Tensor
    length_S: torch.Tensor
    ends: torch.Tensor
    """End tokens."""

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that a decoding step changes."""
        return [self.tokens_SL, self.logp_SL, self.length_S]


class TokenSampler:
    def __init__(self, policy: Policy, capacity: Capacity):
        floats = partial(torch.zeros, dtype=torch.float32, device=policy.device)
        integers = partial(torch.zeros, dtype=torch.int32, device=policy.device)
        ends = torch.tensor(sorted(policy.end_tokens), dtype=torch.int32, device=policy.device)
        S, L = capacity.rows, capacity.new_tokens
        self.results = Results(floats(S + 1, L), integers(S, L), floats(S, L), integers(S), ends)
        self.inverse_temperature = floats(1)
        """0: greedy."""
        parts = -(-policy.model.config.vocab_size // kernels.LOGITS_PER_PROGRAM)
        self.scratch = floats(S, parts), floats(S, parts)

    def start(self, noise_PGL: torch.Tensor, temperature: float) -> None:
        P, G, L = noise_PGL.shape
        self.inverse_temperature.fill_(1 / temperature if temperature else 0.0)
        self.results.noise_SL[: P * G].copy_(noise_PGL.reshape(P * G, L))
        self.results.length_S.fill_(L)

    def sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor, batch: DecodeBatch) -> None:
        """The next token of every row; row b reads the logits at source_B[b]."""
        kernels.sample_tokens(logits_UV, source_B, batch, self.results, self.inverse_temperature, self.scratch)

    def completions(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, log-probabilities and lengths of the first `count` slots."""
        found = self.results.tokens_SL, self.results.logp_SL, self.results.length_S
        tokens_NL, logp_NL, length_N = (tensor[:count].cpu().numpy() for tensor in found)
        return tokens_NL, logp_NL, length_N
