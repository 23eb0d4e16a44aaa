"""Attention of one query per row over the prompt of its group, which is read once, and over its own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.blocks import LOWEST, attend_to_keys, step_of
from grpo.rollout.cuda.kernels.join import Partial, join
from grpo.rollout.cuda.kernels.launch import options, release, wait
from grpo.rollout.cuda.kernels.rotation import KeyValues
from grpo.rollout.schedule import BLOCK_TOKENS

if TYPE_CHECKING:
    from grpo.rollout.cuda.batch import DecodeBatch
    from grpo.rollout.cuda.kv_cache import Tables

QUERIES_AT_ONCE = 64
PROMPT_BLOCKS_PER_PROGRAM = 4
"""A longer prompt is split among several programs; attention to a row's own keys adds their results."""


@triton.jit(do_not_specialize=["rows", "table_width", "window", "tiles"])
def _prompt_attention(
    q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, top_ptr, mass_ptr, start_ptr, length_ptr, first_ptr, time_ptr,
    q_row_stride, rows, table_width, scale, window, tiles,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(DEPENDENT)
    release(DEPENDENT)
    prompt = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    key_head = tl.program_id(1)
    part = tl.program_id(2)
    R: tl.constexpr = H // K
    begin = tl.load(start_ptr + prompt)
    live = (tl.load(start_ptr + prompt + 1) - begin) * R
    if tile * QUERIES >= live:
        return
    length = tl.load(length_ptr + prompt)
    query = tile * QUERIES + tl.arange(0, QUERIES)
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
    top = tl.full([QUERIES], LOWEST, tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    oldest = tl.zeros([QUERIES], tl.int32)
    if WINDOW:
        oldest = tl.load(first_ptr + row, is_query, 0) + tl.load(time_ptr + row, is_query, 1) - window
    for i in range(part * BLOCKS, tl.minimum((part + 1) * BLOCKS, tl.cdiv(length, BLOCK))):
        number = tl.load(table_ptr + prompt.to(tl.int64) * table_width + i).to(tl.int64)
        start = (number * K + key_head) * BLOCK * D
        top, mass, out = attend_to_keys(
            q, top, mass, out, k_ptr + start, v_ptr + start, length - i * BLOCK, oldest - i * BLOCK, column, scale,
            D, BLOCK, WINDOW, PRECISION,
        )  # fmt: skip
    place = (part * rows + row) * H + head
    tl.store(top_ptr + place, top, is_query)
    tl.store(mass_ptr + place, mass, is_query)
    tl.store(out_ptr + place[:, None] * D + column[None, :], out, is_query[:, None] & in_head[None, :])


@triton.jit(do_not_specialize=["rows", "table_width", "window", "splits"])
def _own_attention(
    q_ptr, k_ptr, v_ptr, table_ptr, part_out_ptr, part_top_ptr, part_mass_ptr, out_ptr, owner_ptr, time_ptr,
    q_row_stride, rows, table_width, scale, window, splits,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    split = tl.program_id(2)
    R: tl.constexpr = H // K
    table = table_ptr + tl.load(owner_ptr + row).to(tl.int64) * table_width
    time = tl.load(time_ptr + row)
    query = tl.arange(0, QUERIES)
    is_query = query < R
    head = key_head * R + query
    column = tl.arange(0, WIDTH)
    in_head = column < D
    shape = is_query[:, None] & in_head[None, :]
    q = tl.load(q_ptr + row * q_row_stride + head[:, None] * D + column[None, :], shape, 0.0)
    top = tl.full([QUERIES], LOWEST, tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    if not SPLIT:  # begins with the result of the prompt
        for part in tl.static_range(PARTS):
            place = (part * rows + row) * H + head
            other_top = tl.load(part_top_ptr + place, is_query, 0.0)
            new_top = tl.maximum(top, other_top)
            keep, keep_other = tl.exp2(top - new_top), tl.exp2(other_top - new_top)
            mass = mass * keep + tl.load(part_mass_ptr + place, is_query, 0.0) * keep_other
            other = tl.load(part_out_ptr + place[:, None] * D + column[None, :], shape, 0.0)
            out = out * keep[:, None] + other * keep_other[:, None]
            top = new_top
    oldest = tl.maximum(0, time - window) if WINDOW else 0
    first, last = oldest // KEYS, tl.cdiv(time, KEYS)
    share = tl.cdiv(last - first, splits)
    begin = first + split * share
    for i in range(begin, tl.minimum(begin + share, last)):
        number = tl.load(table + i * KEYS // BLOCK).to(tl.int64)
        start = ((number * K + key_head) * BLOCK + i * KEYS % BLOCK) * D
        top, mass, out = attend_to_keys(
            q, top, mass, out, k_ptr + start, v_ptr + start, time - i * KEYS,
            oldest - i * KEYS + tl.zeros([QUERIES], tl.int32), column, scale, D, KEYS, WINDOW, PRECISION,
        )  # fmt: skip
    release(DEPENDENT)
    if SPLIT:  # `join` adds the parts
        place = ((PARTS + split) * rows + row) * H + head
        tl.store(part_top_ptr + place, top, is_query)
        tl.store(part_mass_ptr + place, mass, is_query)
        tl.store(part_out_ptr + place[:, None] * D + column[None, :], out, shape)
        return
    result = out / mass[:, None]
    tl.store(out_ptr + (row * H + head[:, None]) * D + column[None, :], result.to(q.dtype), shape)


def attention(
    q_BE: torch.Tensor,
    cached: KeyValues,
    tables: Tables,
    batch: DecodeBatch,
    partial: Partial,
    heads: int,
    scale: float,
    window: int | None,
    splits: int = 1,
    dependent: bool = False,
) -> torch.Tensor:
    """Attention of one query per row and head to its prompt, read once for the group, and to the row's own keys.

    Rows of one prompt are adjacent, from `batch.start_P` on. The first heads * D columns of q_BE are the queries.
    """
    attend_to_prompts(q_BE, cached, tables, batch, partial, heads, scale, window, dependent)
    return attend_to_own(q_BE, cached, tables, batch, partial, heads, scale, window, splits, dependent)


def prompt_parts(tables: Tables) -> int:
    """Programs that read the longest prompt."""
    return triton.cdiv(tables.prompt_PT.shape[1], PROMPT_BLOCKS_PER_PROGRAM)


def attend_to_prompts(
    q_BE: torch.Tensor,
    cached: KeyValues,
    tables: Tables,
    batch: DecodeBatch,
    partial: Partial,
    heads: int,
    scale: float,
    window: int | None,
    dependent: bool = False,
) -> None:
    """Writes to `partial` the attention of the rows to each part of their prompt."""
    _, K, _, D = cached[0].shape
    tiles = triton.cdiv(min(batch.group_size, len(q_BE)) * (heads // K), QUERIES_AT_ONCE)
    _prompt_attention[(len(batch.length_P) * tiles, K, prompt_parts(tables))](
        q_BE, *cached, tables.prompt_PT, *partial, batch.start_P, batch.length_P, batch.first_B, batch.time_B,
        q_BE.stride(0), len(q_BE), tables.prompt_PT.stride(0), scale, window or 0, tiles,
        QUERIES=QUERIES_AT_ONCE, BLOCKS=PROMPT_BLOCKS_PER_PROGRAM,
        num_warps=4, num_stages=2, **_settings(q_BE, heads, K, D, window, dependent),
    )  # fmt: skip


def attend_to_own(
    q_BE: torch.Tensor,
    cached: KeyValues,
    tables: Tables,
    batch: DecodeBatch,
    partial: Partial,
    heads: int,
    scale: float,
    window: int | None,
    splits: int = 1,
    dependent: bool = False,
) -> torch.Tensor:
    """Attention to a row's own keys, by `splits` programs a row, joined with the result of `attend_to_prompts`."""
    _, K, _, D = cached[0].shape
    out_BE, parts = q_BE.new_empty(len(q_BE), heads * D), prompt_parts(tables)
    _own_attention[(len(q_BE), K, splits)](
        q_BE, *cached, tables.own_NT, *partial, out_BE, batch.owner_B, batch.time_B,
        q_BE.stride(0), len(q_BE), tables.own_NT.stride(0), scale, window or 0, splits,
        QUERIES=max(16, triton.next_power_of_2(heads // K)), PARTS=parts, SPLIT=splits > 1, num_stages=3,
        **step_of(len(q_BE) * K * splits, q_BE, D), **_settings(q_BE, heads, K, D, window, dependent),
    )  # fmt: skip
    return join(partial, out_BE, parts + splits, dependent) if splits > 1 else out_BE


def _settings(
    q_BE: torch.Tensor, heads: int, key_heads: int, width: int, window: int | None, dependent: bool
) -> dict[str, Any]:
    return {
        "H": heads,
        "K": key_heads,
        "D": width,
        "WIDTH": max(16, triton.next_power_of_2(width)),
        "BLOCK": BLOCK_TOKENS,
        "WINDOW": window is not None,
        # float32 policies are compared with others; tf32 would make them inexact.
        "PRECISION": "ieee" if q_BE.dtype == torch.float32 else "tf32",
        **options(q_BE.device, dependent),
    }
