"""Rotation and attention of a row in one kernel: for small batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.join import Partial, join
from grpo.rollout.cuda.kernels.launch import options, release, wait
from grpo.rollout.cuda.kernels.rotation import KeyValues, Norms, Rotation, _rotated, _weighed
from grpo.rollout.schedule import BLOCK_TOKENS

if TYPE_CHECKING:
    from grpo.rollout.cuda.batch import DecodeBatch
    from grpo.rollout.cuda.kv_cache import Tables

MOST_PROMPT_BLOCKS = 8
"""Longest prompt that every row reads for itself."""
MOST_PROMPT_KEYS, MOST_ROWS = 2**24, 768
"""Most key numbers read (rows × those of a prompt), and most rows: beyond, three kernels that read a prompt once for
its group are faster. With prompts of 256 tokens, the first allows 256 rows of Qwen2.5-1.5B and 128 of 7B."""


@triton.jit
def _normed(low, high, norm_ptr, column, inside, eps, dtype: tl.constexpr, D: tl.constexpr, axis: tl.constexpr):
    """RMS norm of a head, given as two halves: some models normalise queries and keys."""
    square = tl.sum(low * low, axis=axis) + tl.sum(high * high, axis=axis)
    scale = tl.rsqrt(square / D + eps)
    if axis == 1:
        scale = scale[:, None]
    low = _weighed(norm_ptr + column, inside, low * scale, dtype)
    return low, _weighed(norm_ptr + D // 2 + column, inside, high * scale, dtype)


@triton.jit
def _attend_to_blocks(
    q_low, q_high, top, mass, out_low, out_high, k_ptr, v_ptr, table, first, last, oldest, end, key_head, column,
    inside, scale, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds attention to the keys [oldest, end) of the table's blocks [first, last)."""
    for i in range(first, last):
        block, key = tl.load(table + i).to(tl.int64), i * BLOCK + tl.arange(0, BLOCK)
        seen = (key >= oldest) & (key < end)
        exists = seen[:, None] & inside[None, :]
        place = ((block * K + key_head) * BLOCK + key % BLOCK)[:, None] * D + column[None, :]
        keys_low, keys_high = tl.load(k_ptr + place, exists, 0.0), tl.load(k_ptr + place + D // 2, exists, 0.0)
        score = tl.dot(q_low, tl.trans(keys_low), input_precision=PRECISION).to(tl.float32)
        score = (score + tl.dot(q_high, tl.trans(keys_high), input_precision=PRECISION).to(tl.float32)) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        # A program that has attended to no key yet has no greatest score to subtract.
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(score - safe_top[:, None])
        keep = tl.exp(top - safe_top)
        mass = mass * keep + tl.sum(weight, axis=1)
        values_low, values_high = tl.load(v_ptr + place, exists, 0.0), tl.load(v_ptr + place + D // 2, exists, 0.0)
        part = weight.to(q_low.dtype)
        out_low = out_low * keep[:, None] + tl.dot(part, values_low, input_precision=PRECISION).to(tl.float32)
        out_high = out_high * keep[:, None] + tl.dot(part, values_high, input_precision=PRECISION).to(tl.float32)
        top = new_top
    return top, mass, out_low, out_high


@triton.jit
def _new_token(
    qkv_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, row, key_head, position, query, column, inside, eps,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Rotated queries and key of the row's newest token, and its value, each as two halves."""
    R: tl.constexpr = H // K
    shape = (query < R)[:, None] & inside[None, :]
    base = qkv_ptr + row * (H + 2 * K) * D
    place = base + (key_head * R + query)[:, None] * D + column[None, :]
    key_place, value_place = base + (H + key_head) * D + column, base + (H + K + key_head) * D + column
    v_low, v_high = tl.load(value_place, inside, 0.0), tl.load(value_place + D // 2, inside, 0.0)
    dtype = v_low.dtype
    q_low, q_high = tl.load(place, shape, 0.0).to(tl.float32), tl.load(place + D // 2, shape, 0.0).to(tl.float32)
    k_low, k_high = (
        tl.load(key_place, inside, 0.0).to(tl.float32),
        tl.load(key_place + D // 2, inside, 0.0).to(tl.float32),
    )
    if NORM:
        q_low, q_high = _normed(q_low, q_high, q_norm_ptr, column[None, :], inside[None, :], eps, dtype, D, 1)
        k_low, k_high = _normed(k_low, k_high, k_norm_ptr, column, inside, eps, dtype, D, 0)
    cos = tl.load(cos_ptr + position * (D // 2) + column, inside, 0.0)
    sin = tl.load(sin_ptr + position * (D // 2) + column, inside, 0.0).to(tl.float32)
    q_low, q_high = _rotated(q_low, q_high, cos.to(tl.float32)[None, :], sin[None, :], cos.dtype)
    k_low, k_high = _rotated(k_low, k_high, cos.to(tl.float32), sin, cos.dtype)
    return q_low.to(dtype), q_high.to(dtype), k_low.to(dtype), k_high.to(dtype), v_low, v_high


@triton.jit(do_not_specialize=["prompts", "rows", "own_width", "prompt_width", "window", "splits"])
def _whole_attention(
    qkv_ptr, k_ptr, v_ptr, own_table_ptr, prompt_table_ptr, part_out_ptr, part_top_ptr, part_mass_ptr, out_ptr,
    cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, owner_ptr, first_ptr, prompt_ptr, length_ptr, time_ptr,
    eps, prompts, rows, own_width, prompt_width, scale, window, splits,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(DEPENDENT)
    row, key_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = H // K
    newest = tl.load(time_ptr + row) - 1
    position = tl.load(first_ptr + row) + newest
    # A finished row belongs to no prompt; its result is never read.
    prompt = tl.minimum(tl.load(prompt_ptr + row), prompts - 1).to(tl.int64)
    length = tl.load(length_ptr + prompt)
    query, column = tl.arange(0, QUERIES), tl.arange(0, HALF)
    inside = column < D // 2
    shape = (query < R)[:, None] & inside[None, :]
    q_low, q_high, k_low, k_high, v_low, v_high = _new_token(
        qkv_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, row, key_head, position, query, column, inside, eps,
        H, K, D, NORM,
    )  # fmt: skip
    own_table = own_table_ptr + tl.load(owner_ptr + row).to(tl.int64) * own_width
    prompt_table = prompt_table_ptr + prompt * prompt_width
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out_low, out_high = tl.zeros([QUERIES, HALF], tl.float32), tl.zeros([QUERIES, HALF], tl.float32)
    if split == 0:
        block = tl.load(own_table + newest // BLOCK).to(tl.int64)
        stored = ((block * K + key_head) * BLOCK + newest % BLOCK) * D + column
        tl.store(k_ptr + stored, k_low, inside)
        tl.store(k_ptr + stored + D // 2, k_high, inside)
        tl.store(v_ptr + stored, v_low, inside)
        tl.store(v_ptr + stored + D // 2, v_high, inside)
        # The row's newest key is in registers; the cache holds the older ones.
        top = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32)[None, :], axis=1)
        top = (top + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32)[None, :], axis=1)) * scale
        mass = tl.full([QUERIES], 1.0, tl.float32)
        out_low += v_low.to(tl.float32)[None, :]
        out_high += v_high.to(tl.float32)[None, :]
    # Programs share the blocks of the prompt and, after them, the row's own.
    oldest = tl.maximum(0, position - window + 1) if WINDOW else 0
    oldest_own = tl.maximum(0, oldest - length) if WINDOW else 0
    first, first_own = tl.minimum(oldest, length) // BLOCK, oldest_own // BLOCK
    in_prompt = tl.cdiv(length, BLOCK) - first
    share = tl.cdiv(in_prompt + tl.cdiv(newest, BLOCK) - first_own, splits)
    begin, end = split * share, split * share + share
    top, mass, out_low, out_high = _attend_to_blocks(
        q_low, q_high, top, mass, out_low, out_high, k_ptr, v_ptr, prompt_table,
        first + begin, first + tl.minimum(end, in_prompt), oldest, length, key_head, column, inside, scale,
        K, D, BLOCK, PRECISION,
    )  # fmt: skip
    top, mass, out_low, out_high = _attend_to_blocks(
        q_low, q_high, top, mass, out_low, out_high, k_ptr, v_ptr, own_table,
        first_own + tl.maximum(begin - in_prompt, 0), tl.minimum(first_own + end - in_prompt, tl.cdiv(newest, BLOCK)),
        oldest_own, newest, key_head, column, inside, scale, K, D, BLOCK, PRECISION,
    )  # fmt: skip
    release(DEPENDENT)
    head = key_head * R + query
    if SPLIT:  # `join` adds the parts
        place = (split * rows + row) * H + head
        tl.store(part_top_ptr + place, top, query < R)
        tl.store(part_mass_ptr + place, mass, query < R)
        part_out = part_out_ptr + place[:, None] * D + column[None, :]
        tl.store(part_out, out_low, shape)
        tl.store(part_out + D // 2, out_high, shape)
    else:
        out = out_ptr + (row * H + head)[:, None] * D + column[None, :]
        tl.store(out, (out_low / mass[:, None]).to(v_low.dtype), shape)
        tl.store(out + D // 2, (out_high / mass[:, None]).to(v_low.dtype), shape)


def fits_one_program(rows: int, tables: Tables, cached: KeyValues) -> bool:
    """Whether every row reads its prompt itself: for few rows with short prompts, launches take more time."""
    blocks = tables.prompt_PT.shape[1]
    short = blocks <= MOST_PROMPT_BLOCKS and rows <= MOST_ROWS
    return short and rows * blocks * cached[0][0].numel() <= MOST_PROMPT_KEYS


def whole_attention(
    qkv_BE: torch.Tensor,
    cached: KeyValues,
    tables: Tables,
    rotation: Rotation,
    batch: DecodeBatch,
    partial: Partial,
    heads: int,
    scale: float,
    window: int | None,
    norms: Norms | None = None,
    splits: int = 1,
    dependent: bool = False,
) -> torch.Tensor:
    """`rotate_and_store` and `attention` in one kernel, by `splits` programs a row; each row reads its prompt."""
    _, K, _, D = cached[0].shape
    q_norm_D, k_norm_D, eps = norms or (qkv_BE, qkv_BE, 0.0)
    out_BE = qkv_BE.new_empty(len(qkv_BE), heads * D)
    _whole_attention[(len(qkv_BE), K, splits)](
        qkv_BE, *cached, tables.own_NT, tables.prompt_PT, *partial, out_BE, *rotation, q_norm_D, k_norm_D,
        batch.owner_B, batch.first_B, batch.prompt_B, batch.length_P, batch.time_B,
        eps, len(batch.length_P), len(qkv_BE), tables.own_NT.stride(0), tables.prompt_PT.stride(0),
        scale, window or 0, splits, H=heads, K=K, D=D, HALF=max(16, triton.next_power_of_2(D // 2)),
        QUERIES=max(16, triton.next_power_of_2(heads // K)), BLOCK=BLOCK_TOKENS,
        NORM=norms is not None, SPLIT=splits > 1, WINDOW=window is not None,
        PRECISION="ieee" if qkv_BE.dtype == torch.float32 else "tf32",
        num_warps=2 if qkv_BE.element_size() == 2 else 4, num_stages=2, **options(qkv_BE.device, dependent),
    )  # fmt: skip
    return join(partial, out_BE, splits, dependent) if splits > 1 else out_BE
