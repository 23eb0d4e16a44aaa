"""The completions in flight on a GPU: one row each, of a batch that shrinks as they finish.

Keys and values stay where they are; what moves is which row stands for them. How many rows go on is counted on the GPU,
every time they are closed up, and read by the host later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.rollout.cuda import kernels

SMALLEST_BATCH = 8
FINE_FROM = 64
"""Up to here each batch size is twice the one before, beyond it a quarter of a power of two more: every size is a graph
to be captured, and among few rows the size hardly matters."""


@dataclass(frozen=True)
class Room:
    """What a decoding state has place for."""

    rows: int
    prompts: int
    columns: int
    """Longest prompt."""
    new_tokens: int
    group_size: int

    def holds(self, other: Room) -> bool:
        return self.new_tokens == other.new_tokens and all(
            getattr(self, name) >= getattr(other, name) for name in ("rows", "prompts", "columns", "group_size")
        )

    def joined(self, other: Room) -> Room:
        most = {
            name: max(getattr(self, name), getattr(other, name))
            for name in ("rows", "prompts", "columns", "group_size")
        }
        return Room(**most, new_tokens=other.new_tokens)

    def batch_for(self, rows: int) -> int:
        """The smallest size of a graph with place for these."""
        size = SMALLEST_BATCH
        while size < rows:
            size += (1 << size.bit_length() - 1) // 4 if size >= FINE_FROM else size
        return min(size, self.rows)


class Rows:
    """The rows of a prompt stand side by side."""

    def __init__(self, room: Room, device: torch.device):
        def integers(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.group_size = room.group_size
        self.slot_B, self.token_B, self.going_B = (integers(room.rows) for _ in range(3))
        self.first_B = integers(room.rows)
        """Position of the row's first own token: its prompt's length."""
        self.prompt_B = integers(room.rows)
        self.start_P = integers(room.prompts + 1)
        """First row of each prompt, and one past the last."""
        self.length_P = integers(room.prompts)
        self.time = integers(1)
        """How many own tokens every row has: they all started together."""
        self.count = integers(1)
        """How many rows were going when they last closed up."""
        self.before_B = integers(room.rows + 1)
        """How many of them stood before each row, and in all."""

    def begin(self, prompt_lengths: Sequence[int], group_size: int) -> None:
        """Rows 0 to P · G, one after another; the slots likewise."""
        P, rows = len(prompt_lengths), len(prompt_lengths) * group_size
        lengths_P = torch.tensor(prompt_lengths, dtype=torch.int32)
        self.time.zero_()
        self.length_P[:P].copy_(lengths_P)
        torch.arange(len(self.slot_B), out=self.slot_B)
        self.prompt_B[:rows].copy_(torch.arange(P, dtype=torch.int32).repeat_interleave(group_size))
        self.first_B[:rows].copy_(lengths_P.repeat_interleave(group_size))
        self.start_P.copy_((torch.arange(len(self.start_P), dtype=torch.int32) * group_size).clamp(max=rows))
        self.going_B.zero_()
        self.going_B[:rows] = 1

    def close_up(self, batch: int) -> None:
        kernels.compact(self, batch)

    def tensors(self) -> list[torch.Tensor]:
        """All that a token changes."""
        return [
            *(self.slot_B, self.token_B, self.going_B, self.first_B, self.prompt_B),
            *(self.start_P, self.time, self.count, self.before_B),
        ]


@dataclass(eq=False)
class Results:
    """What sampling leaves behind, by slot."""

    noise_SL: torch.Tensor
    tokens_SL: torch.Tensor
    logp_SL: torch.Tensor
    length_S: torch.Tensor
    ends: torch.Tensor
