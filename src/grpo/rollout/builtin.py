"""The built-in engine: samples groups from the training weights, in process.

Each prompt is computed once per group. Its completions start from those keys and values, advance together one token at
a time, and leave the batch as they finish. Completions that memory cannot hold at once are sampled in several sampling
batches. docs/paths.md lists the ways of decoding. Axis letters: types.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from grpo.errors import GrpoError
from grpo.model.device import free_memory
from grpo.model.fused.weights import has_fixed_rotation
from grpo.model.policy import Policy
from grpo.rollout.cpu.decoding import StepDecoding
from grpo.rollout.hf_generate import GenerateDecoding
from grpo.rollout.noise import sampling_noise
from grpo.rollout.protocol import Sampling
from grpo.rollout.schedule import Look
from grpo.rollout.stop_strings import StopStrings
from grpo.types import Completion, Group, Problem

if TYPE_CHECKING:
    from grpo.rollout.cuda.graphs import GraphDecoding

SHARE_OF_FREE_MEMORY = 0.4
"""Share of free memory for completions being sampled; gradients, optimizer state and activations need the rest."""

Sampled = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens, log-probabilities and lengths of completions."""


class Engine:
    def __init__(self, policy: Policy, max_concurrent: int = 0):
        """`max_concurrent`: most completions sampled at once; 0: as many as fit in memory."""
        self.max_concurrent = max_concurrent
        self.policy = policy
        self.graphs: GraphDecoding | None = None

    def sample(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> list[Group]:
        """`group_size` completions of each problem, in order."""
        return [group for groups in self.sampling_batches(problems, group_size, sampling) for group in groups]

    @torch.no_grad()
    def sampling_batches(
        self, problems: Sequence[Problem], group_size: int, sampling: Sampling
    ) -> Iterator[list[Group]]:
        """The groups of `sample`, a sampling batch at a time: as many whole groups as memory holds."""
        if not problems:  # a rank may have none
            return
        new_tokens, device = sampling.max_new_tokens, self.policy.device
        prompts = [self._prompt_tokens(problem, new_tokens) for problem in problems]
        ids = [problem.id for problem in problems]
        noise_PGL = sampling_noise(sampling.seed, sampling.purpose, sampling.step, ids, group_size, new_tokens, device)
        if not self.max_concurrent:
            self.max_concurrent = self.rows_that_fit(max(map(len, prompts)), new_tokens)
        stop = StopStrings(self.policy, sampling.stop) if sampling.stop else None
        parts: list[Sampled] = []
        for first, last, samples in self._spans(len(problems), group_size):
            parts.append(self._sampled(prompts[first:last], noise_PGL[first:last, samples], sampling, stop))
            if samples.stop is not None and samples.stop < group_size:
                continue  # more samples of this group follow
            tokens_NL, logp_NL, length_N = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            completions = self._completions(tokens_NL, logp_NL, length_N, stop)
            parts = []
            asked = zip(problems[first:last], prompts[first:last], self.policy.texts(prompts[first:last]), strict=True)
            yield [
                Group(
                    problem,
                    prompt,
                    tuple(completions[i * group_size : (i + 1) * group_size]),
                    self.policy.version,
                    prompt_text=text,
                )
                for i, (problem, prompt, text) in enumerate(asked)
            ]

    def _sampled(
        self, prompts: Sequence[np.ndarray], noise_PGL: torch.Tensor, sampling: Sampling, stop: StopStrings | None
    ) -> Sampled:
        """Sampled completions. They may be longer than `stop` allows: `_completions` cuts them."""
        if not self.policy.padded and self._can_use_graphs(sampling):
            return self._decode_on_graphs(prompts, noise_PGL, sampling.temperature, stop)
        return self._decode(prompts, noise_PGL, sampling, stop)

    def rows_that_fit(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Number of completions that free memory holds at once."""
        config = self.policy.model.config
        # An upper bound for models without attention.
        heads = getattr(config, "num_attention_heads", 1)
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        per_token = 2 * config.num_hidden_layers * key_heads * width * self.policy.compute_dtype.itemsize
        per_row = per_token * (prompt_tokens + max_new_tokens) + 12 * config.vocab_size
        return max(1, int(SHARE_OF_FREE_MEMORY * free_memory(self.policy.device) / per_row))

    def _spans(self, problems: int, group_size: int) -> Iterator[tuple[int, int, slice]]:
        """Problems [first, last) and a slice of their samples; a group is split only when it does not fit whole."""
        at_once = self.max_concurrent // group_size
        if at_once:
            for first in range(0, problems, at_once):
                yield first, min(first + at_once, problems), slice(None)
            return
        for problem in range(problems):
            for sample in range(0, group_size, self.max_concurrent):
                yield problem, problem + 1, slice(sample, min(sample + self.max_concurrent, group_size))

    def _prompt_tokens(self, problem: Problem, max_new_tokens: int) -> np.ndarray:
        tokens = self.policy.prompt_tokens(problem)
        limit = getattr(self.policy.model.config, "max_position_embeddings", None)
        if not tokens:
            raise GrpoError(f"problem {problem.label}: the prompt has no tokens; write a prompt")
        unknown = getattr(self.policy.tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in tokens:
            shown = problem.prompt[:40]
            raise GrpoError(
                f"problem {problem.label}: {self.policy.name} has no token for part of {shown!r}; use another model"
            )
        if limit and len(tokens) + max_new_tokens > limit:
            raise GrpoError(
                f"problem {problem.label}: {len(tokens)} prompt tokens and max_new_tokens {max_new_tokens} exceed the "
                f"{limit} positions of {self.policy.name}; shorten the prompt or lower max_new_tokens"
            )
        return np.array(tokens, dtype=np.int64)

    def _can_use_graphs(self, sampling: Sampling) -> bool:
        return (
            self.policy.device.type == "cuda"
            and self.policy.compute_dtype in (torch.bfloat16, torch.float16, torch.float32)
            and has_fixed_rotation(self.policy.model)
            and not sampling.restricted
        )

    def _decode_on_graphs(
        self, prompts: Sequence[np.ndarray], noise_PGL: torch.Tensor, temperature: float, stop: StopStrings | None
    ) -> Sampled:
        from grpo.rollout.cuda.graphs import GraphDecoding
        from grpo.rollout.cuda.slots import Capacity

        P, G, L = noise_PGL.shape
        lengths = [len(prompt) for prompt in prompts]
        needed = Capacity(rows=P * G, prompts=P, columns=-(-max(lengths) // 64) * 64, new_tokens=L, group_size=G)
        held = self.graphs
        if held is not None and not held.addresses.match(self.policy.model):
            held = None
        if held is None or not held.capacity.holds(needed):
            if held is not None and held.capacity.new_tokens == L:
                needed = held.capacity.joined(needed)
            self.graphs = held = None  # frees its memory for the next
            self.graphs = held = GraphDecoding(self.policy, needed)
        held.refresh()
        return held.run(lengths, held.prefill(prompts), noise_PGL, temperature, stop)

    def _decode(
        self, prompts: Sequence[np.ndarray], noise_PGL: torch.Tensor, sampling: Sampling, stop: StopStrings | None
    ) -> Sampled:
        noise_NL = noise_PGL.flatten(0, 1)
        everyone = tuple(range(len(noise_NL)))
        kind = GenerateDecoding if self.policy.padded else StepDecoding
        decoding = kind(self.policy, prompts, noise_NL, sampling, stop)
        decoding.change(Look(started=everyone, dropped=(), running=everyone, finished=()))
        decoding.decode(sampling.max_new_tokens)
        return decoding.read(everyone)

    def _completions(
        self, tokens_NL: np.ndarray, logp_NL: np.ndarray, length_N: np.ndarray, stop: StopStrings | None
    ) -> list[Completion]:
        last_N = tokens_NL[np.arange(len(tokens_NL)), length_N - 1]
        ended_N = np.isin(last_N, list(self.policy.end_tokens))
        tokens_NL, text_length_N = tokens_NL.astype(np.int64), length_N - ended_N
        if stop is not None:
            text_length_N, cut_N = stop.cut(tokens_NL, text_length_N)
            length_N, ended_N = np.where(cut_N, text_length_N, length_N), ended_N | cut_N
        texts = self.policy.texts([row[:end] for row, end in zip(tokens_NL, text_length_N.tolist(), strict=True)])
        return [
            Completion(text, row[:length], logp[:length], "stop" if ended else "length")
            for text, row, logp, length, ended in zip(
                texts, tokens_NL, logp_NL, length_N.tolist(), ended_N.tolist(), strict=True
            )
        ]
