"""Rows that go on move to the front of the batch."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

ROWS_AT_ONCE = 1024


@triton.jit(do_not_specialize=["batch", "prompts", "spare"])
def _compact(
    slot_ptr, first_ptr, prompt_ptr, token_ptr, going_ptr, start_ptr, before_ptr, count_ptr, batch, prompts, spare,
    BLOCK: tl.constexpr,
):  # fmt: skip
    count = 0
    for begin in range(0, batch, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        inside = row < batch
        going = tl.load(going_ptr + row, inside, 0)
        slot, first = tl.load(slot_ptr + row, inside, 0), tl.load(first_ptr + row, inside, 0)
        prompt, token = tl.load(prompt_ptr + row, inside, 0), tl.load(token_ptr + row, inside, 0)
        place = count + tl.cumsum(going, 0) - going
        # Rows move forward alone: nothing is written to where another row of these, or a later one, is yet to be read.
        tl.debug_barrier()
        goes = going != 0
        tl.store(slot_ptr + place, slot, goes)
        tl.store(first_ptr + place, first, goes)
        tl.store(prompt_ptr + place, prompt, goes)
        tl.store(token_ptr + place, token, goes)
        tl.store(before_ptr + row, place, inside)
        count += tl.sum(going)
    tl.store(before_ptr + batch, count)
    tl.store(count_ptr, count)
    tl.debug_barrier()
    for begin in range(0, batch, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        inside, left = row < batch, (row >= count) & (row < batch)
        tl.store(going_ptr + row, (row < count).to(tl.int32), inside)
        tl.store(slot_ptr + row, tl.zeros([BLOCK], tl.int32) + spare, left)
        tl.store(prompt_ptr + row, tl.zeros([BLOCK], tl.int32) + prompts, left)
        tl.store(first_ptr + row, tl.zeros([BLOCK], tl.int32), left)
        tl.store(token_ptr + row, tl.zeros([BLOCK], tl.int32), left)
    for begin in range(0, prompts + 1, BLOCK):
        prompt = begin + tl.arange(0, BLOCK)
        inside = prompt <= prompts
        start = tl.load(start_ptr + prompt, inside, 0)
        tl.store(start_ptr + prompt, tl.load(before_ptr + start, inside, 0), inside)


def compact(rows: Any, batch: int) -> None:
    """The going ones of the first `batch` rows come first, in their order; `rows.count` is how many they are.

    The places behind them belong to no prompt and share the spare slot: whatever they compute, nobody reads it.
    """
    _compact[(1,)](
        rows.slot_B, rows.first_B, rows.prompt_B, rows.token_B, rows.going_B, rows.start_P, rows.before_B, rows.count,
        batch, len(rows.length_P), len(rows.slot_B), BLOCK=ROWS_AT_ONCE, num_warps=8,
    )  # fmt: skip
