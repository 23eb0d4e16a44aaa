"""Attention of one query per row over a shared prompt and the row's own keys: two kernels, each prompt read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from grpo.rollout.cuda.slots import DecodeBatch

KEYS_AT_ONCE = 64
QUERIES_AT_ONCE = 64
PROMPT_KEYS_PER_PROGRAM = 256
"""A longer prompt is split among several programs, whose results are joined afterwards."""

KeyValues = tuple[torch.Tensor, torch.Tensor]
"""Key and value tensors."""
Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Per part of a prompt, row and head: attention output, greatest score, and sum of exponentials."""


@triton.jit(do_not_specialize=["rows", "columns", "window", "blocks"])
def _prompt_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, top_ptr, mass_ptr, start_ptr, length_ptr, first_ptr, time_ptr,
    q_row_stride, rows, columns, scale, window, blocks,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PER_PROGRAM: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    prompt = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    key_head = tl.program_id(1)
    part = tl.program_id(2)
    R: tl.constexpr = H // K
    begin = tl.load(start_ptr + prompt)
    live = (tl.load(start_ptr + prompt + 1) - begin) * R
    if block * QUERIES >= live:
        return
    length = tl.load(length_ptr + prompt)
    query = block * QUERIES + tl.arange(0, QUERIES)
    row = (begin + query // R).to(tl.int64)
    head = key_head * R + query % R
    is_query = query < live
    column = tl.arange(0, WIDTH)
    in_head = column < D
    q = tl.load(
        q_ptr + row[:, None] * q_row_stride + head[:, None] * D + column[None, :],
        is_query[:, None] & in_head[None, :],
        0.0,
    )
    base = (prompt * K + key_head) * columns * D
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum(length, (part + 1) * PER_PROGRAM)
    for first in range(part * PER_PROGRAM, end, KEYS):
        key = first + tl.arange(0, KEYS)
        exists = key < end
        k = tl.load(k_ptr + base + key[:, None] * D + column[None, :], exists[:, None] & in_head[None, :], 0.0)
        v = tl.load(v_ptr + base + key[:, None] * D + column[None, :], exists[:, None] & in_head[None, :], 0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(tl.float32) * scale
        seen = exists[None, :] & is_query[:, None]
        if WINDOW:
            position = tl.load(first_ptr + row, is_query, 0) + tl.load(time_ptr)
            seen = seen & (position[:, None] - key[None, :] < window)
        score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        # A row that has attended to no key yet has no greatest score to subtract.
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(score - safe_top[:, None])
        keep = tl.exp(top - safe_top)
        mass = mass * keep + tl.sum(weight, axis=1)
        out = out * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION).to(tl.float32)
        top = new_top
    place = (part * rows + row) * H + head
    tl.store(top_ptr + place, top, is_query)
    tl.store(mass_ptr + place, mass, is_query)
    tl.store(out_ptr + place[:, None] * D + column[None, :], out, is_query[:, None] & in_head[None, :])


@triton.jit(do_not_specialize=["rows", "new_tokens", "window"])
def _own_attention(
    q_ptr, k_ptr, v_ptr, prompt_out_ptr, prompt_top_ptr, prompt_mass_ptr, out_ptr, slot_ptr, first_ptr, time_ptr,
    q_row_stride, rows, new_tokens, scale, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, PARTS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    R: tl.constexpr = H // K
    slot = tl.load(slot_ptr + row).to(tl.int64)
    time = tl.load(time_ptr)
    query = tl.arange(0, QUERIES)
    is_query = query < R
    head = key_head * R + query
    column = tl.arange(0, WIDTH)
    in_head = column < D
    shape = is_query[:, None] & in_head[None, :]
    q = tl.load(q_ptr + row * q_row_stride + head[:, None] * D + column[None, :], shape, 0.0)
    base = (slot * K + key_head) * new_tokens * D
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(0, time - window + 1) // KEYS * KEYS
    for first in range(oldest, time + 1, KEYS):
        key = first + tl.arange(0, KEYS)
        exists = key <= time
        k = tl.load(k_ptr + base + key[:, None] * D + column[None, :], exists[:, None] & in_head[None, :], 0.0)
        v = tl.load(v_ptr + base + key[:, None] * D + column[None, :], exists[:, None] & in_head[None, :], 0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(tl.float32) * scale
        seen = exists
        if WINDOW:
            seen = seen & (time - key < window)
        score = tl.where(seen[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(score - safe_top[:, None])
        keep = tl.exp(top - safe_top)
        mass = mass * keep + tl.sum(weight, axis=1)
        out = out * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION).to(tl.float32)
        top = new_top
    for part in tl.static_range(PARTS):
        place = (part * rows + row) * H + head
        other_top = tl.load(prompt_top_ptr + place, is_query, float("-inf"))
        other_mass = tl.load(prompt_mass_ptr + place, is_query, 0.0)
        other = tl.load(prompt_out_ptr + place[:, None] * D + column[None, :], shape, 0.0)
        new_top = tl.maximum(top, other_top)
        keep, keep_other = tl.exp(top - new_top), tl.exp(other_top - new_top)
        mass = mass * keep + other_mass * keep_other
        out = out * keep[:, None] + other * keep_other[:, None]
        top = new_top
    result = out / mass[:, None]
    tl.store(out_ptr + (row * H + head[:, None]) * D + column[None, :], result.to(q.dtype), shape)


def attention(
    q_BE: torch.Tensor,
    own: KeyValues,
    prompts: KeyValues,
    batch: DecodeBatch,
    scratch: Scratch,
    heads: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of one query per row and head to its prompt, read once for the group, and to the row's own keys.

    Rows of one prompt are adjacent, from `batch.start_P` on. The first heads * D columns of q_BE are the queries.
    """
    attend_to_prompts(q_BE, prompts, batch, scratch, heads, scale, window)
    return attend_to_own(q_BE, own, prompts[0].shape[2], batch, scratch, heads, scale, window)


def attend_to_prompts(
    q_BE: torch.Tensor,
    prompts: KeyValues,
    batch: DecodeBatch,
    scratch: Scratch,
    heads: int,
    scale: float,
    window: int | None,
) -> None:
    """Writes to `scratch` the attention of the rows to each part of their prompt."""
    P, K, columns, D = prompts[0].shape
    blocks = triton.cdiv(min(batch.group_size, len(q_BE)) * (heads // K), QUERIES_AT_ONCE)
    _prompt_attention[(P * blocks, K, triton.cdiv(columns, PROMPT_KEYS_PER_PROGRAM))](
        q_BE, *prompts, *scratch, batch.start_P, batch.length_P, batch.first_B, batch.time,
        q_BE.stride(0), scratch[0].shape[1], columns, scale, window or 0, blocks,
        QUERIES=QUERIES_AT_ONCE, PER_PROGRAM=PROMPT_KEYS_PER_PROGRAM,
        num_warps=4, num_stages=2, **_settings(q_BE, heads, K, D, window),
    )  # fmt: skip


def attend_to_own(
    q_BE: torch.Tensor,
    own: KeyValues,
    columns: int,
    batch: DecodeBatch,
    scratch: Scratch,
    heads: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention to a row's own keys, joined with the result of `attend_to_prompts` for prompts of `columns` tokens."""
    _, K, new_tokens, D = own[0].shape
    out_BE = q_BE.new_empty(len(q_BE), heads * D)
    _own_attention[(len(q_BE), K)](
        q_BE, *own, *scratch, out_BE, batch.slot_B, batch.first_B, batch.time,
        q_BE.stride(0), scratch[0].shape[1], new_tokens, scale, window or 0,
        QUERIES=max(16, triton.next_power_of_2(heads // K)), PARTS=triton.cdiv(columns, PROMPT_KEYS_PER_PROGRAM),
        num_warps=2 if D <= 64 else 4, num_stages=3, **_settings(q_BE, heads, K, D, window),
    )  # fmt: skip
    return out_BE


def _settings(q_BE: torch.Tensor, heads: int, key_heads: int, width: int, window: int | None) -> dict[str, Any]:
    return {
        "H": heads,
        "K": key_heads,
        "D": width,
        "WIDTH": max(16, triton.next_power_of_2(width)),
        "KEYS": KEYS_AT_ONCE,
        "WINDOW": window is not None,
        # float32 policies are compared with others; tf32 would make them inexact.
        "PRECISION": "ieee" if q_BE.dtype == torch.float32 else "tf32",
    }
