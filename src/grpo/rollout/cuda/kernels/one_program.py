"""Rotation and attention of a row in one kernel: for small batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.rotation import Norms, Rotation, _rotated, _weighed
from grpo.rollout.cuda.kernels.shared_prompt import KEYS_AT_ONCE, PROMPT_KEYS_PER_PROGRAM, KeyValues

if TYPE_CHECKING:
    from grpo.rollout.cuda.slots import DecodeBatch

MOST_PROMPT_KEYS = 2**23
"""Most key numbers read (rows × those of a prompt): 682 rows of SmolLM2-135M with prompts of 64 tokens. With 1,024 rows
this takes as long as three kernels that read a prompt once for its group."""


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
def _attend_to_keys(
    q_low, q_high, top, mass, out_low, out_high, k_ptr, v_ptr, start, end, oldest, column, inside, scale,
    D: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds attention to keys [start, end); keys before `oldest` are outside the window."""
    for first in range(start, end, KEYS):
        key = first + tl.arange(0, KEYS)
        exists = (key < end)[:, None] & inside[None, :]
        offset = key[:, None] * D + column[None, :]
        keys_low, keys_high = tl.load(k_ptr + offset, exists, 0.0), tl.load(k_ptr + offset + D // 2, exists, 0.0)
        score = tl.dot(q_low, tl.trans(keys_low), input_precision=PRECISION).to(tl.float32)
        score = (score + tl.dot(q_high, tl.trans(keys_high), input_precision=PRECISION).to(tl.float32)) * scale
        score = tl.where(((key < end) & (key >= oldest))[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - new_top[:, None])
        keep = tl.exp(top - new_top)
        mass = mass * keep + tl.sum(weight, axis=1)
        values_low, values_high = tl.load(v_ptr + offset, exists, 0.0), tl.load(v_ptr + offset + D // 2, exists, 0.0)
        part = weight.to(q_low.dtype)
        out_low = out_low * keep[:, None] + tl.dot(part, values_low, input_precision=PRECISION).to(tl.float32)
        out_high = out_high * keep[:, None] + tl.dot(part, values_high, input_precision=PRECISION).to(tl.float32)
        top = new_top
    return top, mass, out_low, out_high


@triton.jit(do_not_specialize=["prompts", "columns", "new_tokens", "window"])
def _whole_attention(
    qkv_ptr, k_own_ptr, v_own_ptr, k_prompt_ptr, v_prompt_ptr, out_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr,
    slot_ptr, first_ptr, prompt_ptr, length_ptr, time_ptr, eps, prompts, columns, new_tokens, scale, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    NORM: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, key_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    R: tl.constexpr = H // K
    time, slot = tl.load(time_ptr), tl.load(slot_ptr + row).to(tl.int64)
    position = tl.load(first_ptr + row) + time
    # A finished row belongs to no prompt; its result is never read.
    prompt = tl.minimum(tl.load(prompt_ptr + row), prompts - 1).to(tl.int64)
    length = tl.load(length_ptr + prompt)
    query, column = tl.arange(0, QUERIES), tl.arange(0, HALF)
    inside = column < D // 2
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
    q_low, q_high, k_low, k_high = q_low.to(dtype), q_high.to(dtype), k_low.to(dtype), k_high.to(dtype)
    own, shared = (slot * K + key_head) * new_tokens * D, (prompt * K + key_head) * columns * D
    k_own, v_own = k_own_ptr + own, v_own_ptr + own
    tl.store(k_own + time * D + column, k_low, inside)
    tl.store(k_own + time * D + D // 2 + column, k_high, inside)
    tl.store(v_own + time * D + column, v_low, inside)
    tl.store(v_own + time * D + D // 2 + column, v_high, inside)
    # The row's newest key is in registers; the cache holds the older ones.
    top = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32)[None, :], axis=1)
    top = (top + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32)[None, :], axis=1)) * scale
    mass = tl.full([QUERIES], 1.0, tl.float32)
    out_low = tl.zeros([QUERIES, HALF], tl.float32) + v_low.to(tl.float32)[None, :]
    out_high = tl.zeros([QUERIES, HALF], tl.float32) + v_high.to(tl.float32)[None, :]
    oldest = tl.maximum(0, position - window + 1) if WINDOW else 0
    oldest_own = tl.maximum(0, oldest - length) if WINDOW else 0
    top, mass, out_low, out_high = _attend_to_keys(
        q_low, q_high, top, mass, out_low, out_high, k_prompt_ptr + shared, v_prompt_ptr + shared,
        oldest // KEYS * KEYS, length, oldest, column, inside, scale, D, KEYS, PRECISION,
    )  # fmt: skip
    top, mass, out_low, out_high = _attend_to_keys(
        q_low, q_high, top, mass, out_low, out_high, k_own, v_own,
        oldest_own // KEYS * KEYS, time, oldest_own, column, inside, scale, D, KEYS, PRECISION,
    )  # fmt: skip
    out = out_ptr + (row * H + key_head * R + query)[:, None] * D + column[None, :]
    tl.store(out, (out_low / mass[:, None]).to(dtype), shape)
    tl.store(out + D // 2, (out_high / mass[:, None]).to(dtype), shape)


def fits_one_program(rows: int, prompt_PKQD: torch.Tensor) -> bool:
    """Whether one program per row is faster: for few rows with short prompts, launches take more time than reading."""
    short = prompt_PKQD.shape[2] <= 2 * PROMPT_KEYS_PER_PROGRAM
    return short and rows * prompt_PKQD[0].numel() <= MOST_PROMPT_KEYS


def whole_attention(
    qkv_BE: torch.Tensor,
    own: KeyValues,
    prompts: KeyValues,
    rotation: Rotation,
    batch: DecodeBatch,
    heads: int,
    scale: float,
    window: int | None,
    norms: Norms | None = None,
) -> torch.Tensor:
    """`rotate_and_store` and `attention` in one kernel; each row reads its prompt."""
    P, K, columns, D = prompts[0].shape
    q_norm_D, k_norm_D, eps = norms or (qkv_BE, qkv_BE, 0.0)
    out_BE = qkv_BE.new_empty(len(qkv_BE), heads * D)
    _whole_attention[(len(qkv_BE), K)](
        qkv_BE, *own, *prompts, out_BE, *rotation, q_norm_D, k_norm_D,
        batch.slot_B, batch.first_B, batch.prompt_B, batch.length_P, batch.time, eps, P, columns, own[0].shape[2],
        scale, window or 0, H=heads, K=K, D=D, HALF=max(16, triton.next_power_of_2(D // 2)),
        QUERIES=max(16, triton.next_power_of_2(heads // K)), KEYS=KEYS_AT_ONCE, NORM=norms is not None,
        WINDOW=window is not None, PRECISION="ieee" if qkv_BE.dtype == torch.float32 else "tf32",
        num_warps=2 if D <= 64 else 4, num_stages=2,
    )  # fmt: skip
    return out_BE
