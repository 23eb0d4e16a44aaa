"""Who sees whom in a packed micro-batch, as rows of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Rows:
    """Where queries and the keys they see start and end, row by row, int32 [rows + 1]; `causal`: both are the same."""

    queries: torch.Tensor
    keys: torch.Tensor
    longest_queries: int
    longest_keys: int
    causal: bool

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        ends = zip(self.queries.tolist(), self.keys.tolist(), strict=True)
        begin, begin_key = next(ends)
        for end, end_key in ends:
            yield slice(begin, end), slice(begin_key, end_key)
            begin, begin_key = end, end_key


@dataclass(frozen=True, eq=False)
class Segments:
    """A micro-batch, all prompts first, then all completions, group after group."""

    every: Rows
    """Each prompt and each completion, itself."""
    groups: Rows | None
    """Each group's completions, and their prompt; None where there are prompts alone."""
    prompt_tokens: int
    positions: int
    """Of the longest prompt with its longest completion."""

    @classmethod
    def of(
        cls, prompt_length_P: np.ndarray, length_N: np.ndarray, counts: Sequence[int], device: str | torch.device
    ) -> Self:
        """`counts`: completions of each prompt."""
        group_length_P = np.add.reduceat(length_N, np.cumsum([0, *counts[:-1]]))

        def ends(lengths: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device)

        every = np.concatenate([prompt_length_P, length_N])
        itself, longest = ends(every), int(every.max())
        longest_group, longest_prompt = int(group_length_P.max()), int(prompt_length_P.max())
        return cls(
            every=Rows(itself, itself, longest, longest, causal=True),
            groups=Rows(ends(group_length_P), ends(prompt_length_P), longest_group, longest_prompt, causal=False),
            prompt_tokens=int(prompt_length_P.sum()),
            positions=int((np.repeat(prompt_length_P, counts) + length_N).max()),
        )
