"""Who attends to whom in a packed micro-batch, as bounds for attention over sequences of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

KEYS_PER_PROGRAM, PROGRAMS_PER_HEAD, QUERIES_PER_PART = 128, 32, 1024
"""Of flash attention's backward pass; of all parts together, about; of a part, at least: see `Parts`."""


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
class Parts:
    """The queries of each group cut into parts, with a copy of the prompt's keys and values for each.

    Flash attention's backward pass has one program per 128 keys and head, which reads all queries of those keys: with
    few short prompts and long completions, most of a GPU would wait. Every part has programs of its own.
    """

    bounds: SequenceBounds
    source_U: torch.Tensor
    """Prompt token of each copied token."""
    places_SQ: torch.Tensor
    """Places in U of every prompt token's copies."""

    @classmethod
    def of(cls, prompt_length_P: np.ndarray, group_length_P: np.ndarray, device: str | torch.device) -> Self | None:
        """None where one part of each group is enough."""
        programs = int((-(-prompt_length_P // KEYS_PER_PROGRAM)).sum())
        per_part = int(group_length_P.mean()) // QUERIES_PER_PART
        count = min(PROGRAMS_PER_HEAD // programs, per_part, int(group_length_P.min()))
        if count < 2:
            return None
        part = np.arange(count)
        length_PS = (group_length_P[:, None] + part) // count  # as equal as can be; their sum is the group's length
        start_P = np.cumsum(prompt_length_P) - prompt_length_P
        prompt_of_Q = np.repeat(np.arange(len(prompt_length_P)), prompt_length_P)
        place_Q = np.arange(len(prompt_of_Q)) + (count - 1) * start_P[prompt_of_Q]
        places_SQ = place_Q + part[:, None] * prompt_length_P[prompt_of_Q]
        source_U = np.empty(places_SQ.size, dtype=np.int64)
        source_U[places_SQ] = np.arange(len(prompt_of_Q))
        bounds = SequenceBounds(
            _ends(length_PS.flatten(), device),
            _ends(np.repeat(prompt_length_P, count), device),
            int(length_PS.max()),
            int(prompt_length_P.max()),
            causal=False,
        )
        return cls(bounds, torch.from_numpy(source_U).to(device), torch.from_numpy(places_SQ).to(device))

    def copied(self, x_QKD: torch.Tensor) -> torch.Tensor:
        return x_QKD.index_select(0, self.source_U)

    def summed(self, grad_UKD: torch.Tensor) -> torch.Tensor:
        """The gradient of the prompts: the sum over their copies, in float32 or wider, in the same order every time."""
        grad_SQKD = grad_UKD.index_select(0, self.places_SQ.flatten()).unflatten(0, self.places_SQ.shape)
        return grad_SQKD.sum(dim=0, dtype=torch.promote_types(grad_UKD.dtype, torch.float32))


def _ends(lengths: np.ndarray, device: str | torch.device) -> torch.Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device)


@dataclass(frozen=True, eq=False)
class Segments:
    """A packed micro-batch: all prompts first, then all completions, group after group."""

    every: SequenceBounds
    """Each prompt and each completion attends to itself."""
    groups: SequenceBounds | None
    """The completions of a group, as one query sequence, attend to their prompt; None without completions."""
    parts: Parts | None
    """The same in parts, for the backward pass; None where that is not needed."""
    prompt_tokens: int
    positions: int
    """Length of the longest prompt and completion together."""

    @classmethod
    def of(
        cls, prompt_length_P: np.ndarray, length_N: np.ndarray, counts: Sequence[int], device: str | torch.device
    ) -> Self:
        """`counts`: number of completions of each prompt."""
        group_length_P = np.add.reduceat(length_N, np.cumsum([0, *counts[:-1]]))
        every = np.concatenate([prompt_length_P, length_N])
        itself, longest = _ends(every, device), int(every.max())
        longest_group, longest_prompt = int(group_length_P.max()), int(prompt_length_P.max())
        return cls(
            every=SequenceBounds(itself, itself, longest, longest, causal=True),
            groups=SequenceBounds(
                _ends(group_length_P, device),
                _ends(prompt_length_P, device),
                longest_group,
                longest_prompt,
                causal=False,
            ),
            parts=Parts.of(prompt_length_P, group_length_P, device),
            prompt_tokens=int(prompt_length_P.sum()),
            positions=int((np.repeat(prompt_length_P, counts) + length_N).max()),
        )
