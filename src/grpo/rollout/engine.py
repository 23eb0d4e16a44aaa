"""The built-in engine: samples groups from the training weights, in process.

Each prompt is computed once per group; its completions start from those keys and values, advance together one token
at a time, and leave the batch as they finish. Axis letters: types.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from grpo.attention import DecodeCache
from grpo.batch import pack_prompts
from grpo.errors import GrpoError
from grpo.policy import Policy
from grpo.rollout.noise import sampling_noise
from grpo.types import Completion, Group, Problem

COMPACT_BELOW = 0.8
"""Finished rows are dropped once fewer than this share of the batch is still going: a drop copies the cache."""


class Engine:
    def __init__(self, policy: Policy):
        self.load(policy)

    def load(self, policy: Policy) -> None:
        """Samples from this policy from now on. The weights are shared, so a training step needs no call."""
        self.policy = policy

    @torch.no_grad()
    def sample(
        self,
        problems: Sequence[Problem],
        group_size: int,
        *,
        seed: int,
        step: int,
        temperature: float,
        max_new_tokens: int,
        purpose: str = "train",
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> list[Group]:
        """`group_size` completions per problem. Temperature 0 is greedy.

        The noise of a token is keyed by (seed, purpose, step, problem id, sample, position), so the same problem gets
        the same completions whatever else is in the batch. Recorded log-probabilities are those of the full
        distribution at `temperature` (at 1 when greedy); `top_k` and `top_p` are for looking, not for training.
        """
        prompts = [self._prompt_tokens(problem, max_new_tokens) for problem in problems]
        noise_PGL = sampling_noise(seed, purpose, step, [p.id for p in problems], group_size, max_new_tokens)
        noise_NL = torch.from_numpy(noise_PGL.reshape(-1, max_new_tokens)).to(self.policy.device)
        tokens_NL, logp_NL, length_N = self._decode(prompts, group_size, noise_NL, temperature, top_k, top_p)
        completions = self._completions(tokens_NL.cpu().numpy(), logp_NL.cpu().numpy(), length_N.cpu().numpy())
        return [
            Group(problem, prompt, tuple(completions[i * group_size : (i + 1) * group_size]), self.policy.version)
            for i, (problem, prompt) in enumerate(zip(problems, prompts, strict=True))
        ]

    def _prompt_tokens(self, problem: Problem, max_new_tokens: int) -> np.ndarray:
        tokens = self.policy.prompt_tokens(problem)
        limit = getattr(self.policy.model.config, "max_position_embeddings", None)
        if not tokens:
            raise GrpoError(f"problem {problem.id}: its prompt has no tokens; give it some text")
        unknown = getattr(self.policy.tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in tokens:
            shown = problem.prompt[:40]
            raise GrpoError(f"problem {problem.id}: {self.policy.name} does not know all characters of {shown!r}")
        if limit and len(tokens) + max_new_tokens > limit:
            raise GrpoError(
                f"problem {problem.id}: {len(tokens)} prompt tokens and max_new_tokens {max_new_tokens} exceed the "
                f"{limit} positions of {self.policy.name}; shorten the prompt or lower max_new_tokens"
            )
        return np.array(tokens, dtype=np.int64)

    def _decode(
        self,
        prompts: Sequence[np.ndarray],
        group_size: int,
        noise_NL: torch.Tensor,
        temperature: float,
        top_k: int,
        top_p: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, their log-probabilities and the lengths of all completions."""
        device, (N, max_new_tokens) = self.policy.device, noise_NL.shape
        tokens_T, positions_T, layout, last_P = pack_prompts(prompts, device)
        hidden_TC = self.policy.hidden(tokens_T[None], positions_T[None], layout)[0]
        prompt_of_N = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
        logits_NV = self.policy.logits(hidden_TC[last_P])[prompt_of_N]
        assert layout.cache is not None
        cache = DecodeCache(layout.cache, prompt_of_N, max_new_tokens)

        end_tokens = torch.tensor(sorted(self.policy.end_tokens), device=device)
        tokens_NL = torch.zeros(N, max_new_tokens, dtype=torch.int64, device=device)
        logp_NL = torch.zeros(N, max_new_tokens, dtype=logits_NV.dtype, device=device)
        length_N = torch.full((N,), max_new_tokens, device=device)
        row = torch.arange(N, device=device)
        """Which completion each row of the shrinking batch belongs to."""
        going = torch.ones(N, dtype=torch.bool, device=device)
        position = layout.prompt_lengths_P[prompt_of_N]
        for t in range(max_new_tokens):
            token, logp = choose(logits_NV, noise_NL[row, t], temperature, top_k, top_p)
            tokens_NL[row, t], logp_NL[row, t] = token, logp
            ended = going & torch.isin(token, end_tokens)
            length_N[row[ended]] = t + 1
            going = going & ~ended
            remaining = int(going.sum())
            if remaining == 0 or t + 1 == max_new_tokens:
                break
            if remaining < COMPACT_BELOW * len(row):
                kept = going.nonzero()[:, 0]
                cache.keep(kept)
                row, token, position, going = row[kept], token[kept], position[kept], going[kept]
            cache.grow()
            hidden_N1C = self.policy.hidden(token[:, None], position[:, None], cache)
            logits_NV = self.policy.logits(hidden_N1C[:, 0])
            position = position + 1
        return tokens_NL, logp_NL, length_N

    def _completions(self, tokens_NL: np.ndarray, logp_NL: np.ndarray, length_N: np.ndarray) -> list[Completion]:
        tokens = [row[:length] for row, length in zip(tokens_NL, length_N, strict=True)]
        ended = [int(row[-1]) in self.policy.end_tokens for row in tokens]
        spoken = [row[:-1] if end else row for row, end in zip(tokens, ended, strict=True)]
        texts = self.policy.tokenizer.batch_decode(spoken)
        return [
            Completion(text, row, logp[: len(row)], "stop" if end else "length")
            for text, row, logp, end in zip(texts, tokens, logp_NL, ended, strict=True)
        ]


def choose(
    logits_NV: torch.Tensor, uniform_N: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row by inverse transform (one uniform a token), and its log-probability.

    >>> logits = torch.tensor([[0.1, 0.2, 0.7]]).log()
    >>> [choose(logits, torch.tensor([u]), temperature=1.0)[0].item() for u in (0.0, 0.15, 0.95)]
    [0, 1, 2]
    """
    logp_NV = torch.log_softmax(logits_NV / (temperature or 1.0), dim=-1)
    if temperature == 0:
        token_N = logp_NV.argmax(dim=-1)
    else:
        cumulative_NV = _restrict(logp_NV.exp(), top_k, top_p).cumsum(dim=-1)
        # Scaled by the last value, because rounding (and restriction) leaves it short of 1.
        target_N1 = uniform_N[:, None].to(cumulative_NV.dtype) * cumulative_NV[:, -1:]
        token_N = torch.searchsorted(cumulative_NV, target_N1, right=True)[:, 0].clamp(max=logp_NV.shape[1] - 1)
    return token_N, logp_NV.gather(1, token_N[:, None])[:, 0]


def _restrict(prob_NV: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Zeroes all but the `top_k` likeliest tokens, and all beyond the smallest set that holds `top_p` of the mass."""
    if not top_k and top_p >= 1:
        return prob_NV
    sorted_NV, order_NV = prob_NV.sort(dim=-1, descending=True)
    keep_NV = (sorted_NV.cumsum(dim=-1) - sorted_NV) < top_p
    if top_k:
        keep_NV[:, top_k:] = False
    return torch.zeros_like(prob_NV).scatter(1, order_NV, sorted_NV * keep_NV)
