"""Rotation and attention of a row in one kernel: for small batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.blocks import LOG2_E, LOWEST, attend_to_keys, step_of
from grpo.rollout.cuda.kernels.join import Partial, join
from grpo.rollout.cuda.kernels.launch import options, release, wait
from grpo.rollout.cuda.kernels.rotation import KeyValues, Norms, Rotation, biased, rotated
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
def _newest(
    qkv_ptr, bias_ptr, head, norm_ptr, cos, sin, column, inside, eps,
    axis: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Queries or key of the newest token, with bias, norm and rotation; `cos`, `sin` and the norm's weight: by
    column."""
    in_first = column < D // 2
    other = tl.where(in_first, column + D // 2, column - D // 2)
    x = biased(qkv_ptr + head * D + column, bias_ptr + head * D + column, inside, BIAS)
    y = biased(qkv_ptr + head * D + other, bias_ptr + head * D + other, inside, BIAS)
    if NORM:  # some models normalise queries and keys
        scale = tl.rsqrt(tl.sum(x * x, axis=axis, keep_dims=True) / D + eps)
        x = x * scale * tl.load(norm_ptr + column, column < D, 0.0).to(tl.float32)
        y = y * scale * tl.load(norm_ptr + other, column < D, 0.0).to(tl.float32)
    return rotated(x, y, tl.where(in_first, -1.0, 1.0), cos, sin)


@triton.jit
def _store_newest(
    k_ptr, v_ptr, qkv_ptr, bias_ptr, key_head, norm_ptr, cos, sin, column, inside, eps,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Key and value of the newest token, rounded and stored at `k_ptr` and `v_ptr`, by column."""
    k = _newest(qkv_ptr, bias_ptr, H + key_head, norm_ptr, cos, sin, column, inside, eps, 0, D, BIAS, NORM)
    value = (H + K + key_head) * D + column
    v = biased(qkv_ptr + value, bias_ptr + value, inside, BIAS)
    k, v = k.to(k_ptr.dtype.element_ty), v.to(v_ptr.dtype.element_ty)
    tl.store(k_ptr, k, inside)
    tl.store(v_ptr, v, inside)
    return k, v


@triton.jit(do_not_specialize=["prompts", "rows", "own_width", "prompt_width", "window", "splits"])
def _whole_attention(
    qkv_ptr, bias_ptr, k_ptr, v_ptr, own_table_ptr, prompt_table_ptr, part_out_ptr, part_top_ptr, part_mass_ptr,
    out_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, owner_ptr, first_ptr, prompt_ptr, length_ptr, time_ptr,
    eps, prompts, rows, own_width, prompt_width, scale, window, splits,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(DEPENDENT)
    row, key_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = H // K
    newest = tl.load(time_ptr + row) - 1
    position = tl.load(first_ptr + row) + newest
    # A finished row belongs to no prompt; its result is never read.
    prompt = tl.minimum(tl.load(prompt_ptr + row), prompts - 1).to(tl.int64)
    length = tl.load(length_ptr + prompt)
    own_table = own_table_ptr + tl.load(owner_ptr + row).to(tl.int64) * own_width
    prompt_table = prompt_table_ptr + prompt * prompt_width
    query, column = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    inside = column < D
    shape = (query < R)[:, None] & inside[None, :]
    angle = position * (D // 2) + tl.where(column < D // 2, column, column - D // 2)
    cos, sin = tl.load(cos_ptr + angle, inside, 0.0), tl.load(sin_ptr + angle, inside, 0.0)
    qkv_ptr += row * (H + 2 * K) * D
    q = _newest(
        qkv_ptr, bias_ptr, (key_head * R + query)[:, None], q_norm_ptr, cos[None, :], sin[None, :], column[None, :],
        shape, eps, 1, D, BIAS, NORM,
    ).to(k_ptr.dtype.element_ty)  # fmt: skip
    top = tl.full([QUERIES], LOWEST, tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    if split == 0:
        number = tl.load(own_table + newest // BLOCK).to(tl.int64)
        stored = ((number * K + key_head) * BLOCK + newest % BLOCK) * D + column
        k, v = _store_newest(
            k_ptr + stored, v_ptr + stored, qkv_ptr, bias_ptr, key_head, k_norm_ptr, cos, sin, column, inside, eps,
            H, K, D, BIAS, NORM,
        )  # fmt: skip
        # The row's newest key is in registers; the cache holds the older ones.
        top = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], axis=1) * (scale * LOG2_E)
        mass = tl.full([QUERIES], 1.0, tl.float32)
        out += v.to(tl.float32)[None, :]
    # Programs share the keys of the prompt and, after them, the row's own.
    oldest = tl.maximum(0, position - window + 1) if WINDOW else 0
    oldest_own = tl.maximum(0, oldest - length) if WINDOW else 0
    first, first_own = tl.minimum(oldest, length) // KEYS, oldest_own // KEYS
    in_prompt = tl.cdiv(length, KEYS) - first
    steps = in_prompt + tl.cdiv(newest, KEYS) - first_own
    share = tl.cdiv(steps, splits)
    for i in range(split * share, tl.minimum(split * share + share, steps)):
        is_own = i >= in_prompt
        key = tl.where(is_own, i - in_prompt + first_own, i + first) * KEYS
        number = tl.load(tl.where(is_own, own_table, prompt_table) + key // BLOCK).to(tl.int64)
        start = ((number * K + key_head) * BLOCK + key % BLOCK) * D
        top, mass, out = attend_to_keys(
            q, top, mass, out, k_ptr + start, v_ptr + start, tl.where(is_own, newest, length) - key,
            tl.where(is_own, oldest_own, oldest) - key + tl.zeros([QUERIES], tl.int32), column, scale,
            D, KEYS, WINDOW, PRECISION,
        )  # fmt: skip
    release(DEPENDENT)
    head = key_head * R + query
    if SPLIT:  # `join` adds the parts
        place = (split * rows + row) * H + head
        tl.store(part_top_ptr + place, top, query < R)
        tl.store(part_mass_ptr + place, mass, query < R)
        tl.store(part_out_ptr + place[:, None] * D + column[None, :], out, shape)
    else:
        result = (out / mass[:, None]).to(q.dtype)
        tl.store(out_ptr + (row * H + head)[:, None] * D + column[None, :], result, shape)


def fits_one_program(rows: int, tables: Tables, cached: KeyValues) -> bool:
    """Whether every row reads its prompt itself: for few rows with short prompts, launches take more time."""
    blocks = tables.prompt_PT.shape[1]
    short = blocks <= MOST_PROMPT_BLOCKS and rows <= MOST_ROWS
    return short and rows * blocks * cached[0][0].numel() <= MOST_PROMPT_KEYS


def whole_attention(
    qkv_BE: torch.Tensor,
    bias_E: torch.Tensor | None,
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
    out_BE = cached[0].new_empty(len(qkv_BE), heads * D)
    _whole_attention[(len(qkv_BE), K, splits)](
        qkv_BE, qkv_BE if bias_E is None else bias_E, *cached, tables.own_NT, tables.prompt_PT, *partial, out_BE,
        *rotation, q_norm_D, k_norm_D, batch.owner_B, batch.first_B, batch.prompt_B, batch.length_P, batch.time_B,
        eps, len(batch.length_P), len(qkv_BE), tables.own_NT.stride(0), tables.prompt_PT.stride(0),
        scale, window or 0, splits, H=heads, K=K, D=D, WIDTH=max(16, triton.next_power_of_2(D)),
        QUERIES=max(16, triton.next_power_of_2(heads // K)), BLOCK=BLOCK_TOKENS,
        BIAS=bias_E is not None, NORM=norms is not None, SPLIT=splits > 1, WINDOW=window is not None,
        PRECISION="ieee" if out_BE.dtype == torch.float32 else "tf32",
        num_stages=2, **step_of(len(qkv_BE) * K * splits, out_BE, D), **options(qkv_BE.device, dependent),
    )  # fmt: skip
    return join(partial, out_BE, splits, dependent) if splits > 1 else out_BE
