"""Sampling through transformers' `generate`, for models that cannot run packed rows: slower, with the same noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor, StoppingCriteria

from grpo.model.policy import Policy
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.rollout.stop_strings import StopStrings


def sample_with_generate(
    policy: Policy,
    prompts: Sequence[np.ndarray],
    noise_PGL: torch.Tensor,
    sampling: Sampling,
    stop: StopStrings | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, log-probabilities and lengths of all completions."""
    P, G, L = noise_PGL.shape
    longest, device = max(map(len, prompts)), policy.device
    ids_PQ = torch.zeros(P, longest, dtype=torch.int64, device=device)
    mask_PQ = torch.zeros_like(ids_PQ)
    for row, prompt in enumerate(prompts):
        ids_PQ[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask_PQ[row, longest - len(prompt) :] = 1
    sampler = _Sampler(noise_PGL.reshape(P * G, L), sampling)
    with torch.autocast(device.type, policy.compute, enabled=policy.compute is not None):
        policy.model.generate(
            ids_PQ.repeat_interleave(G, 0),
            attention_mask=mask_PQ.repeat_interleave(G, 0),
            max_new_tokens=L,
            do_sample=False,
            logits_processor=[sampler],
            stopping_criteria=[_Stopping(sampler, stop)] if stop else None,
            eos_token_id=sorted(policy.end_tokens),
            pad_token_id=0,
        )
    tokens_NL, logp_NL = sampler.tokens_NL.cpu().numpy(), sampler.logp_NL.cpu().numpy()
    ended_NL = np.isin(tokens_NL, sorted(policy.end_tokens))
    return tokens_NL, logp_NL, np.where(ended_NL.any(axis=1), ended_NL.argmax(axis=1) + 1, L)


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
    """Ends the loop of `generate` when every row has an end token or a stop string."""

    def __init__(self, sampler: _Sampler, stop: StopStrings):
        self.sampler, self.stop = sampler, stop

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: object) -> torch.Tensor:
        return self.stop.ended(self.sampler.tokens_NL[:, : self.sampler.time])
