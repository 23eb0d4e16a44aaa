"""Groups to tensors: packing, the shift by one token, and masks happen only here.

A completion's row is its whole sequence: what it sampled, and what it read in between. Only sampled tokens are targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from grpo.model.attention import PackedLayout, PromptStore
from grpo.model.fused.segments import Segments
from grpo.types import Batch, Completion, Group


class Size(NamedTuple):
    """Tokens of a prompt, a completion, or several of both."""

    tokens: int = 0
    """Tokens without padding: each prompt once, each completion once."""
    rows: int = 0
    longest_prompt: int = 0
    longest_completion: int = 0

    def plus(self, other: Size) -> Size:
        return Size(
            self.tokens + other.tokens,
            self.rows + other.rows,
            max(self.longest_prompt, other.longest_prompt),
            max(self.longest_completion, other.longest_completion),
        )

    def computed(self, padded: bool) -> int:
        """Tokens the model computes. A padded model computes a row per completion, all of one length."""
        return self.rows * (self.longest_prompt + self.longest_completion) if padded else self.tokens


def pack(
    groups: Sequence[Group], token_budget: int, device: str | torch.device = "cpu", *, padded: bool = False
) -> list[Batch]:
    """Micro-batches that compute at most `token_budget` tokens, groups and completions in their order.

    A group larger than the budget is split, and its prompt repeated; a completion larger than the budget gets a
    micro-batch of its own. `padded`: the model is a padded one (`padded.py`).
    """
    batches: list[Batch] = []
    pieces: list[Group] = []
    size = Size()
    for group in groups:
        for piece, piece_size in _pieces(group, token_budget, padded):
            if pieces and size.plus(piece_size).computed(padded) > token_budget:
                batches.append(_pack(pieces, device))
                pieces, size = [], Size()
            pieces.append(piece)
            size = size.plus(piece_size)
    return [*batches, _pack(pieces, device)] if pieces else batches


def longest_row(groups: Sequence[Group]) -> int:
    """Tokens of the longest completion with its prompt: some micro-batch has at least as many."""
    return max((len(g.prompt_tokens) + done.sequence_length for g in groups for done in g.completions), default=0)


def _pieces(group: Group, token_budget: int, padded: bool) -> Iterator[tuple[Group, Size]]:
    """The group, or its completions in parts that each fit the budget with the prompt."""
    prompt = Size(tokens=len(group.prompt_tokens), longest_prompt=len(group.prompt_tokens))
    part: list[Completion] = []
    size = prompt
    for completion in group.completions:
        length = completion.sequence_length
        one = Size(tokens=length, rows=1, longest_completion=length)
        if part and size.plus(one).computed(padded) > token_budget:
            yield _with_completions(group, part), size
            part, size = [], prompt
        part.append(completion)
        size = size.plus(one)
    if part:
        yield _with_completions(group, part), size


def _with_completions(group: Group, completions: Sequence[Completion]) -> Group:
    return Group(group.problem, group.prompt_tokens, tuple(completions), group.policy_version)


def _pack(groups: Sequence[Group], device: str | torch.device) -> Batch:
    completions = [completion for group in groups for completion in group.completions]
    rows = [*(group.prompt_tokens for group in groups), *(completion.sequence for completion in completions)]
    length, start = _lengths_and_starts(rows)
    P, counts = len(groups), [len(group.completions) for group in groups]
    prompt_of_N = np.repeat(np.arange(P), counts)
    prompt_length_P, prompt_start_P = length[:P], start[:P]
    length_N, start_N = length[P:], start[P:]

    prompt_places_PQ, prompt_mask_PQ = _places(prompt_start_P, prompt_length_P)
    places_NE, exists_NE = _places(start_N, length_N)
    # A completion's first token is predicted at its prompt's last token, every other at the token before it.
    last_prompt_place_N = (prompt_start_P + prompt_length_P - 1)[prompt_of_N]
    source_NE = np.concatenate([last_prompt_place_N[:, None], places_NE[:, :-1]], axis=1)
    sampled_NE, mask_NL = _sampled(completions, exists_NE)

    # Positions of a completion start at its prompt's length.
    first_position = np.zeros(len(rows), dtype=np.int64)
    first_position[P:] = prompt_length_P[prompt_of_N]
    tokens_T = np.concatenate(rows).astype(np.int64)
    positions_T = np.arange(len(tokens_T)) + np.repeat(first_position - start, length)

    restore_T = np.empty(len(tokens_T), dtype=np.int64)
    restore_T[prompt_places_PQ[prompt_mask_PQ]] = np.flatnonzero(prompt_mask_PQ)
    restore_T[places_NE[exists_NE]] = prompt_mask_PQ.size + np.flatnonzero(exists_NE)

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def grid(field: str) -> torch.Tensor | None:
        """The completions' values as [N, L]; None where no completion has them."""
        arrays = [array for completion in completions if (array := getattr(completion, field)) is not None]
        if not arrays:
            return None
        assert len(arrays) == len(completions), f"{field}: {len(arrays)} of {len(completions)} completions have it"
        filled_NL = np.zeros(mask_NL.shape, dtype=np.float32)
        filled_NL[mask_NL] = np.concatenate(arrays)
        return tensor(filled_NL)

    advantages_NL = grid("advantages")
    sampler_logp_NL = grid("logprobs")
    assert sampler_logp_NL is not None
    return Batch(
        tokens_T=tensor(tokens_T),
        positions_T=tensor(positions_T),
        layout=PackedLayout(
            prompt_places_PQ=tensor(prompt_places_PQ),
            prompt_lengths_P=tensor(prompt_length_P),
            places_NE=tensor(places_NE),
            prompt_of_N=tensor(prompt_of_N),
            restore_T=tensor(restore_T),
            segments=Segments.of(prompt_length_P, length_N, counts, device),
        ),
        source_A=tensor(source_NE[sampled_NE]),
        target_A=tensor(tokens_T[places_NE[sampled_NE]]),
        mask_NL=tensor(mask_NL),
        advantages_NL=torch.zeros_like(sampler_logp_NL) if advantages_NL is None else advantages_NL,
        sampler_logp_NL=sampler_logp_NL,
        old_logp_NL=grid("old_logprobs"),
        ref_logp_NL=grid("ref_logprobs"),
        values_NL=grid("values"),
        returns_NL=grid("returns"),
    )


def _sampled(completions: Sequence[Completion], exists_NE: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of the episodes were sampled, [N, E]; and the mask of the sampled tokens only, [N, L]."""
    if not any(completion.observations for completion in completions):
        return exists_NE, exists_NE
    sampled_NE = exists_NE.copy()
    sampled_NE[exists_NE] = np.concatenate([completion.sampled for completion in completions])
    length_N = sampled_NE.sum(axis=1)
    return sampled_NE, np.arange(int(length_N.max())) < length_N[:, None]


def pack_prompts(
    prompts: Sequence[np.ndarray], device: str | torch.device, cache: PromptStore
) -> tuple[torch.Tensor, torch.Tensor, PackedLayout, torch.Tensor]:
    """Prompts without completions, for prefill: (tokens_T, positions_T, layout that fills `cache`, index into T of each
    prompt's last token)."""
    length_P, start_P = _lengths_and_starts(prompts)
    places_PQ, mask_PQ = _places(start_P, length_P)
    tokens_T = torch.from_numpy(np.concatenate(prompts).astype(np.int64)).to(device)
    positions_T = torch.from_numpy(np.arange(len(tokens_T)) - np.repeat(start_P, length_P)).to(device)
    restore_T = torch.from_numpy(np.flatnonzero(mask_PQ)).to(device)
    lengths = torch.from_numpy(length_P).to(device)
    empty = torch.zeros(0, 0, dtype=torch.int64, device=device)
    places = torch.from_numpy(places_PQ).to(device)
    layout = PackedLayout(places, lengths, empty, empty[:, 0:0].flatten(), restore_T, cache)
    return tokens_T, positions_T, layout, torch.from_numpy(start_P + length_P - 1).to(device)


def _lengths_and_starts(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    length = np.array([len(row) for row in rows], dtype=np.int64)
    return length, np.cumsum(length) - length


def _places(start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index into T of every token as a grid, 0 beyond a row's end; and the grid's mask."""
    column = np.arange(int(length.max()))
    mask = column < length[:, None]
    return np.where(mask, start[:, None] + column, 0), mask
