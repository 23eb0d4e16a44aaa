"""Sampling through transformers' `generate`, for models that cannot run packed rows: slower, with the same noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from grpo.model.policy import Policy
from grpo.rollout.decoding import Given
from grpo.rollout.noise import give
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.rollout.schedule import Look
from grpo.rollout.stop_strings import StopStrings


class GenerateDecoding:
    """A `Decoding` that runs rows to the end of their turn: none is ever dropped, and none starts while others go on.

    Rows keep no keys and values: each turn computes the prompt and all turns before it again.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        noise_NL: torch.Tensor,
        sampling: Sampling,
        stop: StopStrings | None,
    ):
        N, L = noise_NL.shape
        self.policy, self.prompts, self.noise_NL, self.sampling, self.stop = policy, prompts, noise_NL, sampling, stop
        self.group_size = N // len(prompts)
        self.running: tuple[int, ...] = ()
        self.tokens_NL = np.zeros((N, L), dtype=np.int64)
        self.logp_NL = np.zeros((N, L), dtype=np.float32)
        self.length_N = np.zeros(N, dtype=np.int64)
        self.start_N = torch.zeros(N, dtype=torch.int64, device=policy.device)
        """Tokens before each completion's turn."""
        self.limit_N = torch.full_like(self.start_N, L)
        """Tokens at which the turn is cut."""

    def change(self, look: Look) -> None:
        self.running = look.running

    @torch.no_grad()
    def decode(self, tokens: int) -> list[int]:
        rows, self.running = list(self.running), ()
        if not rows:
            return rows
        sampler = _Sampler(self.noise_NL[rows], self.sampling)
        stopping = _Stopping(sampler, self.start_N[rows], self.limit_N[rows], self.policy.end_tokens, self.stop)
        ids_NQ, mask_NQ = self._padded([self.prompts[completion // self.group_size] for completion in rows])
        policy = self.policy
        with (
            _without_own_settings(policy.model),
            torch.autocast(policy.device.type, policy.compute, enabled=policy.compute is not None),
        ):
            policy.model.generate(
                ids_NQ,
                attention_mask=mask_NQ,
                max_new_tokens=self.sampling.max_new_tokens,
                do_sample=False,
                logits_processor=[sampler],
                stopping_criteria=[stopping],
                eos_token_id=None,  # a given end token ends nothing
                pad_token_id=0,
            )
        self.tokens_NL[rows] = sampler.tokens_NL.cpu().numpy()
        self.logp_NL[rows] = sampler.logp_NL.cpu().numpy()
        self.length_N[rows] = stopping.length_N.cpu().numpy()
        return rows

    def observe(self, given: Mapping[int, Given]) -> None:
        give(self.noise_NL, {completion: row.tokens for completion, row in given.items()})
        for completion, row in given.items():
            self.start_N[completion], self.limit_N[completion] = len(row.tokens), row.limit

    def read(self, completions: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        index = list(completions)
        return self.tokens_NL[index], self.logp_NL[index], self.length_N[index]

    def _padded(self, prompts: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens aligned at the end, and the mask of those that are not padding."""
        longest = max(map(len, prompts))
        ids_NQ = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask_NQ = torch.zeros_like(ids_NQ)
        for row, prompt in enumerate(prompts):
            ids_NQ[row, longest - len(prompt) :] = torch.from_numpy(prompt)
            mask_NQ[row, longest - len(prompt) :] = 1
        return ids_NQ.to(self.policy.device), mask_NQ.to(self.policy.device)


@contextmanager
def _without_own_settings(model: Any) -> Iterator[None]:
    """Leaves out the model's generation_config.json: `generate` would apply a repetition penalty in it before our
    sampler, which training does not."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class _Sampler(LogitsProcessor):
    """Samples the token with our noise and masks all others, so that greedy `generate` takes it."""

    def __init__(self, noise_NL: torch.Tensor, sampling: Sampling):
        self.noise_NL, self.sampling, self.time = noise_NL, sampling, 0
        self.tokens_NL = torch.zeros_like(noise_NL, dtype=torch.int64)
        self.logp_NL = torch.zeros_like(noise_NL)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        settings = self.sampling
        token_N, logp_N = sample_token(
            scores.float(),
            self.noise_NL[:, self.time],
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
        )
        self.tokens_NL[:, self.time], self.logp_NL[:, self.time] = token_N, logp_N
        self.time += 1
        return torch.full_like(scores, float("-inf")).scatter(1, token_N[:, None], 0.0)


class _Stopping(StoppingCriteria):
    """Ends the loop of `generate` when every row has sampled an end token or a stop string, or is at its limit."""

    def __init__(
        self,
        sampler: _Sampler,
        start_N: torch.Tensor,
        limit_N: torch.Tensor,
        end_tokens: frozenset[int],
        stop: StopStrings | None,
    ):
        self.sampler, self.start_N, self.limit_N, self.stop = sampler, start_N, limit_N, stop
        self.end_tokens = torch.tensor(sorted(end_tokens), device=start_N.device)
        self.length_N = torch.zeros_like(start_N)
        """Tokens of each row that has ended; 0 for others."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: object) -> torch.Tensor:
        sampler, time_N = self.sampler, torch.full_like(self.start_N, self.sampler.time)
        tokens_NL, last = sampler.tokens_NL[:, : sampler.time], sampler.time - 1
        ended_N = torch.isin(tokens_NL[:, last], self.end_tokens) & (sampler.noise_NL[:, last] >= 0)
        ended_N |= time_N >= self.limit_N
        if self.stop is not None:
            ended_N |= self.stop.ended(tokens_NL, torch.arange(len(tokens_NL)), self.start_N, time_N)
        self.length_N = torch.where(ended_N & (self.length_N == 0), time_N, self.length_N)
        return self.length_N > 0
