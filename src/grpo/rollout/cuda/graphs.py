"""Decoding on a GPU: one CUDA graph per batch size, replayed once per token.

All tensors of a step have fixed addresses, so a step is captured once and replayed. Finished completions leave by
compaction: active rows move to the front, keys and values stay in place, and a smaller graph takes over. The host reads
the number of active rows one token late. The number only falls, so a late number is safe, and the GPU never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from grpo.model.fused.weights import WeightAddresses
from grpo.model.matmul import matmul_fp32_out
from grpo.model.policy import Policy
from grpo.rollout.cuda.attention import DecodeAttention
from grpo.rollout.cuda.decoder import decoded
from grpo.rollout.cuda.kv_cache import KvCache
from grpo.rollout.cuda.prefill import Prefill
from grpo.rollout.cuda.sampler import TokenSampler
from grpo.rollout.cuda.slots import Capacity, DecodeBatch
from grpo.rollout.cuda.warmup import compile_kernels
from grpo.rollout.stop_strings import StopStrings

TOKENS_BETWEEN_LOOKS = 32
"""Tokens after which the host looks for stop strings. The GPU waits meanwhile."""


class GraphDecoding:
    """KV cache and captured graphs of one policy, kept from one sampling batch to the next."""

    def __init__(self, policy: Policy, capacity: Capacity):
        self.policy, self.capacity = policy, capacity
        self.fused = policy.fused
        self.addresses = WeightAddresses(policy.model)  # after the working copy, which may move weights
        self.rotation = self.fused.rotation(capacity.columns + capacity.new_tokens) if self.fused else None
        self.batch = DecodeBatch(capacity, policy.device)
        self.cache = KvCache(policy, capacity)
        self.attention = DecodeAttention(self.cache, self.batch, self.rotation)
        self.sampler = TokenSampler(policy, capacity)
        self.prefill = Prefill(policy, self.fused, capacity, self.cache, self.rotation, self._capture)
        self.active = torch.zeros(1, dtype=torch.int32, pin_memory=policy.device.type == "cuda")
        """Number of active rows, on the host."""
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        """By batch size."""
        self.pool: Any = None
        self._compile_kernels()

    def _compile_kernels(self) -> None:
        compile_kernels(self)

    def refresh(self) -> None:
        """Updates the working copy of the weights."""
        if self.fused:
            self.fused.refresh()

    def run(
        self,
        prompt_lengths: Sequence[int],
        logits_PV: torch.Tensor,
        noise_PGL: torch.Tensor,
        temperature: float,
        stop: StopStrings | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, log-probabilities and lengths of all completions, after `prefill` has filled the cache."""
        P, G, L = noise_PGL.shape
        N = P * G
        self.sampler.start(noise_PGL, temperature)
        self.batch.start(prompt_lengths, G)
        self._sample(logits_PV, self.batch.prompt_B[:N])
        size = self.capacity.batch_size(N)
        self.batch.compact(size)
        previous = None
        for t in range(1, L):
            self._graph(size).replay()
            if stop is not None and t % TOKENS_BETWEEN_LOOKS == 0:
                self._leave_at(stop, N, t + 1)
            # Waiting for the token before this one: the GPU computes while the host decides.
            waited_for, previous = previous, self._recorded_event()
            if waited_for is None:
                continue
            waited_for.synchronize()
            # This may be the count of a later token already; counts only fall, so it is valid too.
            active = int(self.active)
            if active == 0:
                break
            size = min(size, self.capacity.batch_size(active))
        return self.sampler.completions(N)

    def _leave_at(self, stop: StopStrings, count: int, length: int) -> None:
        """Ends the completions with a stop string among their `length` tokens; the next step compacts them away."""
        results, batch = self.sampler.results, self.batch
        running_N = results.length_S[:count] == results.tokens_SL.shape[1]
        ended_N = running_N & stop.ended(results.tokens_SL[:count, :length], new=TOKENS_BETWEEN_LOOKS + 1)
        results.length_S[:count] = torch.where(ended_N, length, results.length_S[:count])
        runs_S = torch.ones(len(batch.slot_B) + 1, dtype=torch.int32, device=ended_N.device)  # the last slot is spare
        runs_S[:count] -= ended_N.to(torch.int32)
        batch.active_B.mul_(runs_S[batch.slot_B.long()])

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
        self.active.copy_(self.batch.count, non_blocking=True)

    def _step(self, size: int) -> None:
        """Decodes one token of the first `size` rows and compacts them."""
        batch = self.batch
        if self.fused:
            hidden_BC = decoded(self.fused, batch.token_B[:size], self.attention.fused)
            logits_BV = matmul_fp32_out(hidden_BC, self.fused.head)
        else:
            token_B1 = batch.token_B[:size].long()[:, None]
            position_B1 = (batch.first_B[:size] + batch.time).long()[:, None]
            logits_BV = self.policy.logits(self.policy.hidden(token_B1, position_B1, self.attention)[:, 0])
        batch.time.add_(1)
        self._sample(logits_BV, batch.index_B[:size])
        batch.compact(size)
        self.active.copy_(batch.count, non_blocking=True)

    def _sample(self, logits_UV: torch.Tensor, source_B: torch.Tensor) -> None:
        self.sampler.sample(logits_UV, source_B, self.batch)
