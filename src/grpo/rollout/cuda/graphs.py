"""Decoding on a GPU: one CUDA graph per batch size, replayed once per token.

All tensors of a step have fixed addresses, so a step is captured once and replayed. Finished completions leave by
compaction: active rows move to the front, keys and values stay in place, and a smaller graph takes over. A paused row
leaves in the same way, keeps its blocks, and goes on where it was. The host reads the number of active rows one token
late. Between two changes of the batch the number only falls, so a late number is safe, and the GPU never waits. It is
never the number of a later token: a graph's size decides how its rows are rounded, and must not depend on time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from grpo.model.fused.weights import WeightAddresses
from grpo.model.matmul import matmul_fp32_out
from grpo.model.policy import Policy
from grpo.rollout.cuda.attention import DecodeAttention
from grpo.rollout.cuda.batch import Capacity, DecodeBatch, Rows
from grpo.rollout.cuda.decoder import decoded
from grpo.rollout.cuda.kv_cache import PREFILL_PROMPTS, KvCache
from grpo.rollout.cuda.prefill import Prefill
from grpo.rollout.cuda.sampler import TokenSampler
from grpo.rollout.cuda.warmup import compile_kernels
from grpo.rollout.decoding import Given, Sampled
from grpo.rollout.schedule import Look, Schedule
from grpo.rollout.stop_strings import StopStrings

QUEUED_SHARE = 0.25
"""Share of the tokens between two looks that is still to be computed when the host begins to look: the GPU works while
the host hands out blocks and decodes texts."""


class GraphDecoding:
    """KV cache and captured graphs of one policy, kept from one call of the engine to the next.

    Implements `decoding.Decoding` between two calls of `begin`.
    """

    schedule: Schedule
    prompts: Sequence[np.ndarray]
    lengths_P: np.ndarray
    start_N: np.ndarray
    """Tokens before each completion's turn."""
    stop: StopStrings | None

    def __init__(self, policy: Policy, capacity: Capacity):
        self.policy, self.capacity = policy, capacity
        self.fused = policy.fused
        self.addresses = WeightAddresses(policy.model)  # after the working copy, which may move weights
        self.rotation = self.fused.rotation(capacity.prompt_tokens + capacity.new_tokens) if self.fused else None
        self.batch = DecodeBatch(capacity, policy.device)
        self.cache = KvCache(policy, capacity)
        self.attention = DecodeAttention(self.cache, self.batch, self.rotation)
        self.sampler = TokenSampler(policy, capacity)
        self.prefill = Prefill(policy, self.fused, self.cache, self.rotation)
        on_gpu = policy.device.type == "cuda"
        self.counts = [torch.zeros(1, dtype=torch.int32, pin_memory=on_gpu) for _ in range(2)]
        """Number of active rows after the last step, and after the one before, on the host."""
        self.length_N = torch.zeros(capacity.completions + 1, dtype=torch.int32, pin_memory=on_gpu)
        """Lengths of ended completions, on the host."""
        self.running = np.zeros(0, dtype=np.int64)
        """Completions that have not ended, as far as the host knows."""
        self.computed: dict[int, tuple[torch.Tensor, np.ndarray]] = {}
        """Hidden state of the last token, for first tokens, and blocks of each prompt that has rows, by problem."""
        self.size = 0
        """Rows of the next step."""
        self.replayed: tuple[Any, torch.Tensor] | None = None
        """Event after the last step, and its number of active rows on the host; None if the batch has changed since."""
        self.side = torch.cuda.Stream(policy.device) if on_gpu else None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        """By batch size."""
        self.pool: Any = None
        self._compile_kernels()

    def _compile_kernels(self) -> None:
        compile_kernels(self)

    def begin(
        self,
        schedule: Schedule,
        prompts: Sequence[np.ndarray],
        noise_NL: torch.Tensor,
        temperature: float,
        stop: StopStrings | None = None,
    ) -> None:
        """Prepares to sample these completions with the policy's weights of now."""
        if self.fused:
            self.fused.refresh()
        self.schedule, self.prompts, self.stop = schedule, prompts, stop
        self.lengths_P = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
        self.start_N = np.zeros(len(noise_NL), dtype=np.int64)
        self.sampler.start(noise_NL, temperature)
        self.running = np.zeros(0, dtype=np.int64)
        self.computed = {}

    def change(self, look: Look) -> None:
        schedule = self.schedule
        self.cache.write(self.cache.tables.own_NT, schedule.table_NT)
        self.running = np.array(look.running, dtype=np.int64)
        # A prompt whose last row has left may have other blocks, or none.
        self.computed = {p: it for p, it in self.computed.items() if np.array_equal(it[1], schedule.prompt_table_PT[p])}
        if look.started:
            self._start(look.started)
        if look.running and (look.started or look.dropped or look.resumed):
            self._fill(self.running, schedule.time_N[self.running])
            results, batch, count = self.sampler.results, self.batch, len(self.running)
            owner_B, time_B = batch.owner_B.long(), batch.time_B.long()
            batch.token_B.copy_(results.tokens_NL[owner_B, time_B - 1])
            batch.active_B.copy_((results.length_N[owner_B] == 0) & (batch.index_B < count))
            self.size = self.capacity.batch_size(count)
            self.replayed = None

    def _start(self, started: Sequence[int]) -> None:
        """Computes prompts that have had no rows, and samples the first tokens of these completions."""
        rows_of = {p: list(rows) for p, rows in groupby(started, key=lambda n: n // self.schedule.group_size)}
        missing = [p for p in rows_of if p not in self.computed]
        for part in self.prefill.parts(self.lengths_P[missing].tolist()):
            prompts, blocks_PT = [self.prompts[p] for p in missing[part]], self.schedule.prompt_table_PT[missing[part]]
            hidden_PC = self.prefill(prompts, blocks_PT, self._capture)
            self.computed |= zip(missing[part], zip(hidden_PC, blocks_PT, strict=True), strict=True)
        for first in range(0, len(rows_of), PREFILL_PROMPTS):
            problems = list(rows_of)[first : first + PREFILL_PROMPTS]
            completions = np.array([n for p in problems for n in rows_of[p]])
            self._fill(completions, np.zeros(len(completions)), problems)
            owner_B = self.batch.owner_B[: len(completions)].long()
            self.sampler.results.length_N[owner_B] = 0
            self.batch.active_B[: len(completions)] = 1
            logits_PV = self._logits(torch.stack([self.computed[p][0] for p in problems]))
            self._sample(logits_PV, self.batch.prompt_B[: len(completions)])

    def _fill(self, completions: np.ndarray, times: np.ndarray, problems: Sequence[int] | None = None) -> None:
        """Fills the batch with these rows; `problems`: those of the prompts by place, in order."""
        problem_B = completions // self.schedule.group_size
        if problems is None:
            problems = np.unique(problem_B).tolist()
            self.cache.write(self.cache.tables.prompt_PT, self.schedule.prompt_table_PT[problems])
        place_B = np.searchsorted(problems, problem_B)
        self.batch.fill(Rows(completions, times, place_B, self.lengths_P[problems]))

    def decode(self, tokens: int) -> list[int]:
        left = self.schedule.left
        queued = 0 if tokens >= left else int(QUEUED_SHARE * tokens)
        copied = None
        for t in range(1, tokens + 1):
            self._graph(self.size).replay()
            waited_for, self.replayed = self.replayed, self._counted()
            if t == tokens - queued:
                copied = self._copy_lengths()
            if waited_for is None or t > tokens - queued:
                continue
            # Waiting for the token before this one: the GPU computes while the host decides.
            event, count = waited_for
            event.synchronize()
            active = int(count)
            if active == 0:
                break
            self.size = min(self.size, self.capacity.batch_size(active))
        (copied or self._copy_lengths()).synchronize()
        if self.stop is not None:
            self._leave_at(self.stop, tokens)
        ended_R = self.length_N.numpy()[self.running] > 0
        ended, self.running = self.running[ended_R], self.running[~ended_R]
        return ended.tolist()

    def observe(self, given: Mapping[int, Given]) -> None:
        self.sampler.observe(given)
        self.start_N[list(given)] = [len(row.tokens) for row in given.values()]

    def read(self, completions: Sequence[int]) -> Sampled:
        longest = int(self.length_N.numpy()[list(completions)].max())
        # These rows are final: a stream of its own reads them while further tokens are sampled.
        on_side: AbstractContextManager[object] = torch.cuda.stream(self.side) if self.side else nullcontext()
        with on_side:
            return self.sampler.read(completions, longest)

    def _counted(self) -> tuple[Any, torch.Tensor]:
        """Copies the number of active rows to the host, where that of the step before stays for a step longer."""
        self.counts.reverse()
        self.counts[0].copy_(self.batch.count, non_blocking=True)
        return self._recorded_event(), self.counts[0]

    def _copy_lengths(self) -> Any:
        self.length_N.copy_(self.sampler.results.length_N, non_blocking=True)
        return self._recorded_event()

    def _leave_at(self, stop: StopStrings, tokens: int) -> None:
        """Ends the turns with a stop string in their last tokens; the next step compacts their rows away."""
        results, batch, lengths = self.sampler.results, self.batch, self.length_N.numpy()
        going_on = self.running[lengths[self.running] == 0]
        if not len(going_on):
            return
        times = np.minimum(self.schedule.time_N[going_on] + tokens, results.tokens_NL.shape[1])
        index_M, time_M = (torch.from_numpy(x).to(batch.owner_B.device) for x in (going_on, times.astype(np.int32)))
        start_M = torch.from_numpy(self.start_N[going_on])
        found_M = stop.ended(results.tokens_NL, index_M, start_M, time_M, tokens + 1)
        # A row may have ended since the lengths were copied.
        length_M = results.length_N[index_M]
        results.length_N[index_M] = torch.where(found_M & (length_M == 0), time_M, length_M)
        batch.active_B.mul_(results.length_N[batch.owner_B.long()] == 0)
        self._copy_lengths().synchronize()

    def _recorded_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record()
        return event

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        if size not in self.graphs:
            self._warm_up(size)
            self.graphs[size] = self._capture(partial(self._step, size))
        return self.graphs[size]

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Captures `work`. All graphs share one memory pool: no two run at the same time."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        self.pool = graph.pool()
        return graph

    def _warm_up(self, size: int) -> None:
        """Runs a step before its capture, so that kernels compile and libraries select theirs; then undoes it."""
        written = [*self.batch.tensors(), *self.sampler.results.tensors()]
        saved = [tensor.clone() for tensor in written]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(size)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, values in zip(written, saved, strict=True):
            tensor.copy_(values)

    def _step(self, size: int) -> None:
        """Decodes one token of the first `size` rows and compacts them."""
        batch = self.batch
        if self.fused:
            hidden_BC = decoded(self.fused, batch.token_B[:size], self.attention.fused)
        else:
            token_B1 = batch.token_B[:size].long()[:, None]
            position_B1 = (batch.first_B[:size] + batch.time_B[:size] - 1).long()[:, None]
            hidden_BC = self.policy.hidden(token_B1, position_B1, self.attention)[:, 0]
        self._sample(self._logits(hidden_BC), batch.index_B[:size])
        batch.compact(size)

    def _logits(self, hidden_UC: torch.Tensor) -> torch.Tensor:
        return matmul_fp32_out(hidden_UC, self.fused.head) if self.fused else self.policy.logits(hidden_UC)

    def _sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor) -> None:
        self.sampler.sample(logits_UV, source_B, self.batch)
