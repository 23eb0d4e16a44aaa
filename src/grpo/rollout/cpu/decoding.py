"""Decoding with one call of the stock model per token: on a CPU, and on a GPU where CUDA graphs cannot be used.

Rows that have ended stay in the batch until enough of them have: removing them copies the cache. Rows that start or go
on join the others at a look. What a row reads before its turn is decoded like what it samples, token by token. Axis
letters in addition to types.py: N completions of the call, M rows: those being decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from grpo.model.packing import pack_prompts
from grpo.model.policy import Policy
from grpo.rollout.cpu.kv_cache import DecodeCache, PromptCache, RowCache, SavedRows, SharedPromptCache
from grpo.rollout.cpu.linear import sampling_layers
from grpo.rollout.decoding import Given
from grpo.rollout.noise import give
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.rollout.schedule import Look
from grpo.rollout.stop_strings import StopStrings

COMPACT_BELOW = 0.8
"""Finished rows are dropped once fewer than this share of the batch is active: dropping copies the cache."""


class StepDecoding:
    """A `Decoding`. The model's layers are as they were whenever a method has returned."""

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        noise_NL: torch.Tensor,
        sampling: Sampling,
        stop: StopStrings | None,
        rows: int,
    ):
        """`rows`: most rows at once."""
        (N, L), device = noise_NL.shape, policy.device
        self.policy, self.prompts, self.sampling, self.stop = policy, prompts, sampling, stop
        self.group_size, self.new_tokens = N // len(prompts), L
        self.layers = sampling_layers(policy, min(N, rows))
        # The last column is for rows that have ended and are still in the batch.
        self.noise_NL = F.pad(noise_NL, (0, 1))
        self.tokens_NL = torch.zeros(N, L + 1, dtype=torch.int64, device=device)
        self.logp_NL = self.tokens_NL.to(torch.promote_types(policy.compute_dtype, torch.float32))
        self.length_N = torch.zeros(N, dtype=torch.int64, device=device)
        self.start_N = torch.zeros_like(self.length_N)
        """Tokens before each completion's turn."""
        self.limit_N = torch.full_like(self.length_N, L)
        """Tokens at which the turn is cut."""
        self.end_tokens = torch.tensor(sorted(policy.end_tokens), device=device)

        full_precision = device.type == "cpu" and policy.compute_dtype in (torch.float32, torch.float64)
        self.cache: RowCache = (SharedPromptCache if full_precision else DecodeCache)(L, device)
        self.last_hidden: dict[int, torch.Tensor] = {}
        """Hidden state of the last token of each prompt, by problem, in the order of the cache: gives first tokens."""
        self.completion_M = self.length_N[:0]
        self.token_M = self.length_N[:0]
        """Token that each row sampled last."""
        self.time_M = self.length_N[:0]
        """Tokens that each row has sampled."""
        self.active_M = torch.zeros(0, dtype=torch.bool, device=device)
        """Rows that have not ended."""
        self.active = 0
        self.ended: list[int] = []
        """Completions that have ended since the last report."""
        self.keeps = False
        """Whether rows whose turn has ended keep their keys and values."""
        self.paused: dict[int, tuple[SavedRows, int] | None] = {}
        """Their keys and values, by completion; None while the row is still in the batch."""
        self.after: dict[int, int] = {}
        """Tokens from which paused rows go on."""

    @torch.no_grad()
    def change(self, look: Look) -> None:
        for completion in look.dropped:
            self.paused.pop(completion, None)
        if look.started or look.resumed:
            self._join(look)
        elif look.dropped:
            self.active_M &= ~torch.isin(self.completion_M, self._tensor(look.dropped))
            self.active = int(self.active_M.sum())
            if self.active:
                self._compact()

    @torch.no_grad()
    def decode(self, tokens: int) -> list[int]:
        with self.layers:
            for _ in range(tokens):
                if self.active == 0:
                    break
                if self.active < COMPACT_BELOW * len(self.completion_M):
                    self._compact()
                self.cache.grow()
                position_M = self.cache.lengths_P[self.cache.prompt_of_N] + self.time_M - 1
                hidden_M1C = self.policy.hidden(self.token_M[:, None], position_M[:, None], self.cache)
                self._sample(slice(None), self.policy.logits(hidden_M1C[:, 0]))
        ended, self.ended = self.ended, []
        return ended

    def observe(self, given: Mapping[int, Given]) -> None:
        self.keeps = True
        self.paused = {completion: row for completion, row in self.paused.items() if completion in given}
        self.after = {completion: row.after for completion, row in given.items()}
        index = self._tensor(list(given))
        give(self.noise_NL, {completion: row.tokens for completion, row in given.items()})
        self.start_N[index] = self._tensor([len(row.tokens) for row in given.values()])
        self.limit_N[index] = self._tensor([row.limit for row in given.values()])

    def read(self, completions: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        index = self._tensor(completions)
        results = self.tokens_NL[index, : self.new_tokens], self.logp_NL[index, : self.new_tokens], self.length_N[index]
        tokens_NL, logp_NL, length_N = (result.cpu().numpy() for result in results)
        return tokens_NL, logp_NL, length_N

    def _join(self, look: Look) -> None:
        """Puts rows that start or go on into the batch. Computes prompts that the cache lacks, and the first token of
        every row that starts."""
        self._save_paused()
        joining = {*look.started, *look.resumed}
        row_of = {completion: row for row, completion in enumerate(self.completion_M.tolist())}
        row_M = self._tensor([-1 if n in joining else row_of[n] for n in look.running])
        if not look.started:
            self._arrange(row_M, look.running, look.resumed)
            return
        problems = list(dict.fromkeys(self._problem(completion) for completion in look.started))
        with self.layers:
            if missing := [problem for problem in problems if problem not in self.last_hidden]:
                self._compute_prompts(missing)
            logits_PV = self.policy.logits(torch.stack([self.last_hidden[problem] for problem in problems]))
        self._arrange(row_M, look.running, look.resumed)
        number = {problem: i for i, problem in enumerate(problems)}
        prompt_of_started = self._tensor([number[self._problem(n)] for n in look.started])
        rows = torch.isin(self.completion_M, self._tensor(look.started)).nonzero()[:, 0]
        self._sample(rows, logits_PV[prompt_of_started])

    def _compute_prompts(self, problems: list[int]) -> None:
        prompts = PromptCache()
        tokens_T, positions_T, layout, last_P = pack_prompts(
            [self.prompts[problem] for problem in problems], self.policy.device, prompts
        )
        hidden_TC = self.policy.hidden(tokens_T[None], positions_T[None], layout)[0]
        self.cache.join(prompts, layout.prompt_lengths_P)
        self.last_hidden |= zip(problems, hidden_TC[last_P], strict=True)

    def _compact(self) -> None:
        """Removes the rows that have ended."""
        self._save_paused()
        kept = self.active_M.nonzero()[:, 0]
        self._arrange(kept, self.completion_M[kept].tolist())

    def _arrange(self, row_M: torch.Tensor, completions: Sequence[int], resumed: Sequence[int] = ()) -> None:
        """Makes these completions the rows. `row_M`: the row of each up to now; -1: it starts or goes on again."""
        before = {problem: i for i, problem in enumerate(self.last_hidden)}
        problems = sorted({self._problem(n) for n in (*completions, *self.paused)})
        number = {problem: i for i, problem in enumerate(problems)}
        self.cache.arrange(
            row_M,
            self._tensor([number[self._problem(n)] for n in completions]),
            self._tensor([before[problem] for problem in problems]),
            max((self.after[n] - 1 for n in resumed), default=0),
        )
        self.last_hidden = {problem: self.last_hidden[problem] for problem in problems}
        self.completion_M = self._tensor(completions)
        self.token_M, self.time_M = (F.pad(x_M, (0, 1))[row_M] for x_M in (self.token_M, self.time_M))
        self.active_M = torch.ones_like(self.completion_M, dtype=torch.bool)
        self.active = len(completions)
        self._restore(resumed)

    def _save_paused(self) -> None:
        """Saves the keys and values of paused rows that are still in the batch. The last token of a row has none."""
        paused = [n for n, saved in self.paused.items() if saved is None]
        if paused:
            row_of = {completion: row for row, completion in enumerate(self.completion_M.tolist())}
            saved = self.cache.save(self._tensor([row_of[n] for n in paused]), self.length_N[self._tensor(paused)] - 1)
            self.paused |= {n: (saved, i) for i, n in enumerate(paused)}

    def _restore(self, resumed: Sequence[int]) -> None:
        """Gives rows that go on their keys and values, last token and time."""
        row_of = {completion: row for row, completion in enumerate(self.completion_M.tolist())}
        of_saved: dict[SavedRows, list[tuple[int, int]]] = {}
        for n in resumed:
            row = self.paused.pop(n)
            assert row is not None
            of_saved.setdefault(row[0], []).append((n, row[1]))
        for saved, members in of_saved.items():
            completions, index = (self._tensor(numbers) for numbers in zip(*members, strict=True))
            rows, time = (self._tensor([of[n] for n, _ in members]) for of in (row_of, self.after))
            self.cache.restore(rows, saved, index, time - 1)
            self.token_M[rows], self.time_M[rows] = self.tokens_NL[completions, time - 1], time

    def _sample(self, rows: slice | torch.Tensor, logits_MV: torch.Tensor) -> None:
        """Samples the next token of these rows, and notes which of them it ends."""
        completion, time, settings = self.completion_M[rows], self.time_M[rows], self.sampling
        noise = self.noise_NL[completion, time]
        token, logp = sample_token(
            logits_MV,
            noise,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
        )
        self.tokens_NL[completion, time], self.logp_NL[completion, time] = token, logp
        time = (time + 1).clamp(max=self.new_tokens)
        ended = torch.isin(token, self.end_tokens) & (noise >= 0) | (time >= self.limit_N[completion])
        if self.stop is not None:
            ended |= self.stop.ended(self.tokens_NL, completion, self.start_N[completion], time)
        ended &= self.active_M[rows]
        self.length_N[completion[ended]] = time[ended]
        self.ended += (new := completion[ended].tolist())
        if self.keeps:
            self.paused |= dict.fromkeys(new)
        self.token_M[rows], self.time_M[rows] = token, time
        self.active_M[rows] &= ~ended
        self.active = int(self.active_M.sum())

    def _problem(self, completion: int) -> int:
        return completion // self.group_size

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.policy.device)
