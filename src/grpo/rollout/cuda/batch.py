"""The completions being decoded on a GPU: one row each, in a batch that shrinks as they finish.

Keys and values stay in their blocks; a row holds the number of its completion, whose blocks a table names. The GPU
counts the active rows at every compaction, and the host reads the count later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from grpo.model.plan.cache import whole_blocks
from grpo.model.plan.work import Work
from grpo.rollout.cuda import kernels
from grpo.rollout.schedule import BLOCK_TOKENS, Schedule, blocks_of

SMALLEST_BATCH = 8
FINE_FROM = 64
"""Batch sizes double up to here; beyond, they grow by a quarter of a power of two. Each size is a graph to capture, and
below 64 rows the size hardly changes the time."""


@dataclass(frozen=True)
class Capacity:
    """The largest work that a decoding state holds."""

    completions: int
    rows: int
    """Completions decoded at once."""
    prompts: int
    """Prompts with rows at once."""
    prompt_tokens: int
    """Those of the longest prompt."""
    new_tokens: int
    group_size: int
    blocks: int
    """Blocks of keys and values."""

    @classmethod
    def of_rollout(cls, schedule: Schedule, prompts: Sequence[np.ndarray]) -> Self:
        return cls(
            completions=len(schedule.time_N),
            rows=schedule.room.rows,
            prompts=min(len(prompts), schedule.room.rows),
            prompt_tokens=blocks_of(max(map(len, prompts))) * BLOCK_TOKENS,
            new_tokens=schedule.new_tokens,
            group_size=schedule.group_size,
            blocks=schedule.room.blocks,
        )

    @classmethod
    def of_run(cls, work: Work, cache_blocks: int) -> Self:
        """Of its steps and evaluations."""
        return cls(
            completions=max(work.completions, work.heldout),
            rows=work.rows,
            prompts=max(prompts for prompts, _ in work.at_once),
            prompt_tokens=blocks_of(work.prompt_tokens) * BLOCK_TOKENS,
            new_tokens=work.new_tokens,
            group_size=work.group_size,
            blocks=min(whole_blocks(work), cache_blocks),
        )

    def holds(self, other: Capacity) -> bool:
        return self == self.joined(other)

    def joined(self, other: Capacity) -> Capacity:
        return Capacity(**{name: max(value, getattr(other, name)) for name, value in vars(self).items()})

    def batch_size(self, rows: int) -> int:
        """The smallest batch size with at least `rows` rows."""
        size = SMALLEST_BATCH
        while size < rows:
            size += (1 << size.bit_length() - 1) // 4 if size >= FINE_FROM else size
        return min(size, self.rows)

    @property
    def batch_sizes(self) -> list[int]:
        return sorted({self.batch_size(rows) for rows in range(1, self.rows + 1)})


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows for a batch, those of one prompt adjacent."""

    completions: Sequence[int] | np.ndarray
    times: Sequence[int] | np.ndarray
    """Tokens that each has sampled."""
    prompts: Sequence[int] | np.ndarray
    """Place of each row's prompt: 0 for the first rows, one more with each further prompt."""
    lengths: Sequence[int] | np.ndarray
    """Tokens of the prompt at each place."""


class DecodeBatch:
    """The rows being decoded, at fixed addresses. The rows of a prompt are adjacent."""

    def __init__(self, capacity: Capacity, device: torch.device):
        def integers(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.group_size, self.spare = capacity.group_size, capacity.completions
        self.token_B, self.active_B = integers(capacity.rows), integers(capacity.rows)
        """Last token of each row, and whether it goes on."""
        self.owner_B = integers(capacity.rows) + self.spare
        """Completion of each row; `spare`, where it has finished."""
        self.time_B = integers(capacity.rows) + 1
        """Tokens that each row has sampled; the last of them has no keys yet."""
        self.first_B = integers(capacity.rows)
        """Position of the row's first own token: its prompt's length."""
        self.prompt_B = integers(capacity.rows) + capacity.prompts
        """Place of each row's prompt; beyond the last, where it has finished."""
        self.index_B = torch.arange(capacity.rows, dtype=torch.int32, device=device)
        """Row numbers."""
        self.start_P = integers(capacity.prompts + 1)
        """First row of each prompt; the last entry is the end."""
        self.length_P = integers(capacity.prompts)
        self.count = integers(1)
        """Active rows at the last compaction."""
        self.before_B = integers(capacity.rows + 1)
        """Active rows before each row at the last compaction; the last entry is their number."""

    def fill(self, rows: Rows) -> None:
        """Replaces all rows. `token_B` and `active_B` are left to the caller."""
        prompt_B, lengths_P = np.asarray(rows.prompts, np.int32), np.asarray(rows.lengths, np.int32)

        def padded(values: Sequence[int] | np.ndarray, size: int, rest: int = 0) -> np.ndarray:
            return np.pad(np.asarray(values, np.int32), (0, size - len(values)), constant_values=rest)

        B, P = len(self.owner_B), len(self.length_P)
        columns = [
            padded(rows.completions, B, self.spare),
            padded(rows.times, B, 1),
            padded(prompt_B, B, P),
            padded(lengths_P[prompt_B], B),
            np.searchsorted(prompt_B, np.arange(P + 1)).astype(np.int32),
            padded(lengths_P, P),
        ]
        # One copy to the GPU, from memory that it reads while the host goes on.
        packed = torch.from_numpy(np.concatenate(columns))
        if self.owner_B.is_cuda:
            packed = packed.pin_memory().to(self.owner_B.device, non_blocking=True)
        targets = [self.owner_B, self.time_B, self.prompt_B, self.first_B, self.start_P, self.length_P]
        for target, values in zip(targets, packed.split([len(target) for target in targets]), strict=True):
            target.copy_(values)

    def compact(self, size: int) -> None:
        """Moves the active ones of the first `size` rows to the front."""
        kernels.compact(self, size)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that a decoding step changes."""
        return [
            *(self.owner_B, self.token_B, self.active_B, self.time_B, self.first_B, self.prompt_B),
            *(self.start_P, self.count, self.before_B),
        ]
