"""Who attends to whom in a packed micro-batch, as bounds for attention over sequences of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class SequenceBounds:
    """Cumulative lengths (cu_seqlens) of query sequences, and of the key sequences that each attends to."""

    queries: torch.Tensor
    """int32 [sequences + 1]."""
    keys: torch.Tensor
    """int32 [sequences + 1]."""
    longest_queries: int
    longest_keys: int
    causal: bool
    """Whether each query sequence attends to itself, causally."""

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        ends = zip(self.queries.tolist(), self.keys.tolist(), strict=True)
        begin, begin_key = next(ends)
        for end, end_key in ends:
            yield slice(begin, end), slice(begin_key, end_key)
            begin, begin_key = end, end_key


@dataclass(frozen=True, eq=False)
class Segments:
    """A packed micro-batch: all prompts first, then all completions, group after group."""

    every: SequenceBounds
    """Each prompt and each completion attends to itself."""
    groups: SequenceBounds | None
    """The completions of a group, as one query sequence, attend to their prompt; None without completions."""
    prompt_tokens: int
    positions: int
    """Length of the longest prompt and completion together."""

    @classmethod
    def of(
        cls, prompt_length_P: np.ndarray, length_N: np.ndarray, counts: Sequence[int], device: str | torch.device
    ) -> Self:
        """`counts`: number of completions of each prompt."""
        group_length_P = np.add.reduceat(length_N, np.cumsum([0, *counts[:-1]]))

        def ends(lengths: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device)

        every = np.concatenate([prompt_length_P, length_N])
        itself, longest = ends(every), int(every.max())
        longest_group, longest_prompt = int(group_length_P.max()), int(prompt_length_P.max())
        return cls(
            every=SequenceBounds(itself, itself, longest, longest, causal=True),
            groups=SequenceBounds(
                ends(group_length_P), ends(prompt_length_P), longest_group, longest_prompt, causal=False
            ),
            prompt_tokens=int(prompt_length_P.sum()),
            positions=int((np.repeat(prompt_length_P, counts) + length_N).max()),
        )
