"""The completions being decoded on a GPU: one row each, in a batch that shrinks as they finish.

Keys and values stay in their slot; a row holds the number of its slot. The GPU counts the active rows at every
compaction, and the host reads the count later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.rollout.cuda import kernels

SMALLEST_BATCH = 8
FINE_FROM = 64
"""Batch sizes double up to here; beyond, they grow by a quarter of a power of two. Each size is a graph to capture, and
below 64 rows the size hardly changes the time."""


@dataclass(frozen=True)
class Capacity:
    """The largest sampling batch that a decoding state holds."""

    rows: int
    prompts: int
    columns: int
    """Tokens of the longest prompt."""
    new_tokens: int
    group_size: int

    def holds(self, other: Capacity) -> bool:
        return self.new_tokens == other.new_tokens and all(
            getattr(self, name) >= getattr(other, name) for name in ("rows", "prompts", "columns", "group_size")
        )

    def joined(self, other: Capacity) -> Capacity:
        most = {
            name: max(getattr(self, name), getattr(other, name))
            for name in ("rows", "prompts", "columns", "group_size")
        }
        return Capacity(**most, new_tokens=other.new_tokens)

    def batch_size(self, rows: int) -> int:
        """The smallest batch size with at least `rows` rows."""
        size = SMALLEST_BATCH
        while size < rows:
            size += (1 << size.bit_length() - 1) // 4 if size >= FINE_FROM else size
        return min(size, self.rows)


class DecodeBatch:
    """The rows being decoded, at fixed addresses. The rows of a prompt are adjacent."""

    def __init__(self, capacity: Capacity, device: torch.device):
        def integers(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.group_size = capacity.group_size
        self.slot_B, self.token_B, self.active_B = (integers(capacity.rows) for _ in range(3))
        self.first_B = integers(capacity.rows)
        """Position of the row's first own token: its prompt's length."""
        self.prompt_B = integers(capacity.rows)
        self.index_B = torch.arange(capacity.rows, dtype=torch.int32, device=device)
        """Row numbers."""
        self.start_P = integers(capacity.prompts + 1)
        """First row of each prompt; the last entry is the end."""
        self.length_P = integers(capacity.prompts)
        self.time = integers(1)
        """Own tokens of every row: all rows start together."""
        self.count = integers(1)
        """Active rows at the last compaction."""
        self.before_B = integers(capacity.rows + 1)
        """Active rows before each row at the last compaction; the last entry is their number."""

    def start(self, prompt_lengths: Sequence[int], group_size: int) -> None:
        """Assigns rows and slots 0 to P · G, group after group."""
        P, rows = len(prompt_lengths), len(prompt_lengths) * group_size
        lengths_P = torch.tensor(prompt_lengths, dtype=torch.int32)
        self.time.zero_()
        self.length_P[:P].copy_(lengths_P)
        torch.arange(len(self.slot_B), out=self.slot_B)
        self.prompt_B[:rows].copy_(torch.arange(P, dtype=torch.int32).repeat_interleave(group_size))
        self.first_B[:rows].copy_(lengths_P.repeat_interleave(group_size))
        self.start_P.copy_((torch.arange(len(self.start_P), dtype=torch.int32) * group_size).clamp(max=rows))
        self.active_B.zero_()
        self.active_B[:rows] = 1

    def compact(self, size: int) -> None:
        """Moves the active ones of the first `size` rows to the front."""
        kernels.compact(self, size)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that a decoding step changes."""
        return [
            *(self.slot_B, self.token_B, self.active_B, self.first_B, self.prompt_B),
            *(self.start_P, self.time, self.count, self.before_B),
        ]
