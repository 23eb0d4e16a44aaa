"""Groups to tensors: the only place that packs, shifts and masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from grpo.model.attention import PackedLayout, PromptStore
from grpo.model.fused.segments import Segments
from grpo.types import Batch, Completion, Group


def pack(groups: Sequence[Group], token_budget: int, device: str | torch.device = "cpu") -> list[Batch]:
    """Micro-batches of at most `token_budget` tokens, groups and completions in their order, each prompt once.

    A group larger than the budget is split, and only then is its prompt repeated; a single completion larger than
    the budget stands alone.
    """
    batches: list[Batch] = []
    pieces: list[Group] = []
    size = 0
    for group in groups:
        for piece in _pieces(group, token_budget):
            tokens = len(piece.prompt_tokens) + sum(map(len, piece.completions))
            if pieces and size + tokens > token_budget:
                batches.append(_pack(pieces, device))
                pieces, size = [], 0
            pieces.append(piece)
            size += tokens
    return [*batches, _pack(pieces, device)] if pieces else batches


def _pieces(group: Group, token_budget: int) -> Iterator[Group]:
    room = token_budget - len(group.prompt_tokens)
    chosen: list[Completion] = []
    for completion in group.completions:
        if chosen and sum(map(len, chosen)) + len(completion) > room:
            yield _with_completions(group, chosen)
            chosen = []
        chosen.append(completion)
    if chosen:
        yield _with_completions(group, chosen)


def _with_completions(group: Group, completions: Sequence[Completion]) -> Group:
    return Group(group.problem, group.prompt_tokens, tuple(completions), group.policy_version)


def _pack(groups: Sequence[Group], device: str | torch.device) -> Batch:
    completions = [completion for group in groups for completion in group.completions]
    rows = [*(group.prompt_tokens for group in groups), *(completion.tokens for completion in completions)]
    length, start = _lengths_and_starts(rows)
    P, counts = len(groups), [len(group.completions) for group in groups]
    prompt_of_N = np.repeat(np.arange(P), counts)
    prompt_length_P, prompt_start_P = length[:P], start[:P]
    length_N, start_N = length[P:], start[P:]

    prompt_places_PQ, prompt_mask_PQ = _places(prompt_start_P, prompt_length_P)
    places_NL, mask_NL = _places(start_N, length_N)
    # The token that predicts a completion's first token is its prompt's last; after that, the one before.
    last_prompt_place_N = (prompt_start_P + prompt_length_P - 1)[prompt_of_N]
    source_NL = np.concatenate([last_prompt_place_N[:, None], places_NL[:, :-1]], axis=1)

    # A completion's positions count on from its prompt's end, not from its neighbour's.
    first_position = np.zeros(len(rows), dtype=np.int64)
    first_position[P:] = prompt_length_P[prompt_of_N]
    tokens_T = np.concatenate(rows).astype(np.int64)
    positions_T = np.arange(len(tokens_T)) + np.repeat(first_position - start, length)

    restore_T = np.empty(len(tokens_T), dtype=np.int64)
    restore_T[prompt_places_PQ[prompt_mask_PQ]] = np.flatnonzero(prompt_mask_PQ)
    restore_T[places_NL[mask_NL]] = prompt_mask_PQ.size + np.flatnonzero(mask_NL)

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def grid(values: Callable[[Completion], np.ndarray | None]) -> torch.Tensor | None:
        arrays = [array for completion in completions if (array := values(completion)) is not None]
        if len(arrays) < len(completions):
            return None
        filled_NL = np.zeros(mask_NL.shape, dtype=np.float32)
        filled_NL[mask_NL] = np.concatenate(arrays)
        return tensor(filled_NL)

    advantages_NL = grid(lambda completion: completion.advantages)
    sampler_logp_NL = grid(lambda completion: completion.logprobs)
    assert sampler_logp_NL is not None
    return Batch(
        tokens_T=tensor(tokens_T),
        positions_T=tensor(positions_T),
        layout=PackedLayout(
            prompt_places_PQ=tensor(prompt_places_PQ),
            prompt_lengths_P=tensor(prompt_length_P),
            places_NL=tensor(places_NL),
            prompt_of_N=tensor(prompt_of_N),
            restore_T=tensor(restore_T),
            segments=Segments.of(prompt_length_P, length_N, counts, device),
        ),
        source_A=tensor(source_NL[mask_NL]),
        target_A=tensor(tokens_T[places_NL[mask_NL]]),
        mask_NL=tensor(mask_NL),
        advantages_NL=torch.zeros_like(sampler_logp_NL) if advantages_NL is None else advantages_NL,
        sampler_logp_NL=sampler_logp_NL,
        old_logp_NL=grid(lambda completion: completion.old_logprobs),
        ref_logp_NL=grid(lambda completion: completion.ref_logprobs),
        values_NL=grid(lambda completion: completion.values),
        returns_NL=grid(lambda completion: completion.returns),
    )


def pack_prompts(
    prompts: Sequence[np.ndarray], device: str | torch.device, cache: PromptStore
) -> tuple[torch.Tensor, torch.Tensor, PackedLayout, torch.Tensor]:
    """Prompts alone, for prefill: (tokens_T, positions_T, layout that fills the cache, place of each last token)."""
    length_P, start_P = _lengths_and_starts(prompts)
    places_PQ, mask_PQ = _places(start_P, length_P)
    tokens_T = torch.from_numpy(np.concatenate(prompts).astype(np.int64)).to(device)
    positions_T = torch.from_numpy(np.arange(len(tokens_T)) - np.repeat(start_P, length_P)).to(device)
    restore_T = torch.from_numpy(np.flatnonzero(mask_PQ)).to(device)
    lengths = torch.from_numpy(length_P).to(device)
    nothing = torch.zeros(0, 0, dtype=torch.int64, device=device)
    places = torch.from_numpy(places_PQ).to(device)
    layout = PackedLayout(places, lengths, nothing, nothing[:, 0:0].flatten(), restore_T, cache)
    return tokens_T, positions_T, layout, torch.from_numpy(start_P + length_P - 1).to(device)


def _lengths_and_starts(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    length = np.array([len(row) for row in rows], dtype=np.int64)
    return length, np.cumsum(length) - length


def _places(start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index into the packed row of every token, as a grid with its mask; 0 where the mask is False."""
    column = np.arange(int(length.max()))
    mask = column < length[:, None]
    return np.where(mask, start[:, None] + column, 0), mask
