"""Compaction: active rows move to the front of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from grpo.rollout.cuda.batch import DecodeBatch

ROWS_AT_ONCE = 1024


@triton.jit(do_not_specialize=["batch", "prompts", "spare"])
def _compact(
    owner_ptr, first_ptr, prompt_ptr, token_ptr, time_ptr, active_ptr, start_ptr, before_ptr, count_ptr,
    batch, prompts, spare, BLOCK: tl.constexpr,
):  # fmt: skip
    count = 0
    for begin in range(0, batch, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        inside = row < batch
        active = tl.load(active_ptr + row, inside, 0)
        owner, first = tl.load(owner_ptr + row, inside, 0), tl.load(first_ptr + row, inside, 0)
        prompt, token = tl.load(prompt_ptr + row, inside, 0), tl.load(token_ptr + row, inside, 0)
        time = tl.load(time_ptr + row, inside, 0)
        place = count + tl.cumsum(active, 0) - active
        # Rows only move forward: no place is written before it was read.
        tl.debug_barrier()
        is_active = active != 0
        tl.store(owner_ptr + place, owner, is_active)
        tl.store(first_ptr + place, first, is_active)
        tl.store(prompt_ptr + place, prompt, is_active)
        tl.store(token_ptr + place, token, is_active)
        tl.store(time_ptr + place, time, is_active)
        tl.store(before_ptr + row, place, inside)
        count += tl.sum(active)
    tl.store(before_ptr + batch, count)
    tl.store(count_ptr, count)
    tl.debug_barrier()
    for begin in range(0, batch, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        inside, left = row < batch, (row >= count) & (row < batch)
        tl.store(active_ptr + row, (row < count).to(tl.int32), inside)
        tl.store(owner_ptr + row, tl.zeros([BLOCK], tl.int32) + spare, left)
        tl.store(prompt_ptr + row, tl.zeros([BLOCK], tl.int32) + prompts, left)
        tl.store(first_ptr + row, tl.zeros([BLOCK], tl.int32), left)
        tl.store(token_ptr + row, tl.zeros([BLOCK], tl.int32), left)
        tl.store(time_ptr + row, tl.zeros([BLOCK], tl.int32) + 1, left)
    for begin in range(0, prompts + 1, BLOCK):
        prompt = begin + tl.arange(0, BLOCK)
        inside = prompt <= prompts
        start = tl.load(start_ptr + prompt, inside, 0)
        tl.store(start_ptr + prompt, tl.load(before_ptr + start, inside, 0), inside)


def compact(batch: DecodeBatch, size: int) -> None:
    """Moves the active ones of the first `size` rows to the front, in order; `batch.count` becomes their number.

    The rows after them belong to no prompt and share the spare completion; their results are never read.
    """
    _compact[(1,)](
        batch.owner_B, batch.first_B, batch.prompt_B, batch.token_B, batch.time_B, batch.active_B, batch.start_P,
        batch.before_B, batch.count, size, len(batch.length_P), batch.spare, BLOCK=ROWS_AT_ONCE, num_warps=8,
    )  # fmt: skip
