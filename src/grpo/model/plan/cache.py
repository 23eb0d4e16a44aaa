"""The KV cache of a rollout on a GPU, counted in blocks of 64 tokens of one prompt or completion."""

from __future__ import annotations

import math
from dataclasses import replace

from grpo.model.plan.shape import Shape
from grpo.model.plan.work import Work

BLOCK_TOKENS = 64
"""Copy of `grpo.rollout.schedule.BLOCK_TOKENS`, so that a room imports only rooms above; a test checks it."""
SHARE_OF_FREE_MEMORY = 0.4
"""Largest share of the memory beside the weights; `grpo.rollout.builtin.SHARE_OF_FREE_MEMORY`."""

LOGIT_BYTES = 12
"""Of a logit of a running row, with what is computed from it; `grpo.rollout.builtin.LOGIT_BYTES`."""


def block_bytes(shape: Shape, size: int) -> int:
    """Keys and values of a block in all layers; `size`: bytes of a number."""
    return 2 * shape.layers * shape.kv_width * size * BLOCK_TOKENS


def whole_blocks(work: Work) -> int:
    """Blocks of all completions that are decoded at once, at full length, in training or in an evaluation.

    >>> whole_blocks(Work(prompts=2, group_size=8, prompt_tokens=65, new_tokens=130))  # 2 · 2 and 16 · 3
    52
    """
    prompt, new = (-(-tokens // BLOCK_TOKENS) for tokens in (work.prompt_tokens, work.new_tokens))
    return max(prompts * prompt + rows * new for prompts, rows in work.at_once)


def reserved(
    shape: Shape, work: Work, size: int, loaded: int, available: int, *, graphs: bool
) -> tuple[Work, int, int]:
    """(the work, with no more rows at once than memory holds; blocks of a GPU's KV cache; bytes with which sampling
    would begin where `available` are too few, else 0).

    `loaded`: bytes of weights; `available`: of the device, 0 for any; `graphs`: whether CUDA graphs sample.
    """
    if not available:
        return work, whole_blocks(work), 0
    free = max(0, available - loaded)
    if not graphs:
        rows = min(work.rows, rows_that_fit(shape, work, size, free))
        work = replace(work, concurrent=rows)
        return work, whole_blocks(work), 0
    least = loaded + least_free(shape, work, size)
    return work, cache_blocks(shape, work, size, free), least if available < least else 0


def rows_that_fit(shape: Shape, work: Work, size: int, free: int) -> int:
    """Completions of full length, as `grpo.rollout.builtin.Engine.rows_that_fit` counts them."""
    tokens = work.prompt_tokens + work.new_tokens
    per_row = block_bytes(shape, size) // BLOCK_TOKENS * tokens + LOGIT_BYTES * shape.vocabulary
    return max(1, int(SHARE_OF_FREE_MEMORY * free / per_row))


def cache_blocks(shape: Shape, work: Work, size: int, free: int) -> int:
    """Blocks that a run reserves: all that its completions may fill, or those that fit its share of `free` bytes beside
    the logits. One completion with its prompt is the least."""
    for_blocks = int(SHARE_OF_FREE_MEMORY * free) - LOGIT_BYTES * shape.vocabulary * work.rows
    return max(_least(work), min(whole_blocks(work), for_blocks // block_bytes(shape, size)))


def least_free(shape: Shape, work: Work, size: int) -> int:
    """Bytes of which a run's share holds the logits of all rows, and one completion with its prompt. With fewer beside
    the weights, the run is refused."""
    taken = LOGIT_BYTES * shape.vocabulary * work.rows + block_bytes(shape, size) * _least(work)
    return math.ceil(taken / SHARE_OF_FREE_MEMORY)


def _least(work: Work) -> int:
    return whole_blocks(Work(prompts=1, group_size=1, prompt_tokens=work.prompt_tokens, new_tokens=work.new_tokens))
