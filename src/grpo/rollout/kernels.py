"""Triton kernels of decoding on a GPU. Each rounds where the stock model rounds, so that sampler and trainer agree.

Axis letters beyond types.py: B rows being decoded, H query heads, K key heads, R query heads per key head, D head
width, Q prompt columns, I width of the feed-forward layer. A row is one completion in flight; it has a slot, where its
own keys and values live, and a prompt, whose keys and values it shares with its siblings.

`tests/test_kernels.py` holds every kernel to a float64 reference, on a CPU through Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

KEYS_AT_ONCE = 64
QUERIES_AT_ONCE = 64
PROMPT_KEYS_PER_PROGRAM = 256
"""A longer prompt is read by several programs, whose parts are joined afterwards."""
LOGITS_PER_PROGRAM = 4096
ROWS_FOR_ONE_PROGRAM = 128


@triton.jit
def _add_and_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, eps, C: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    residual = tl.load(residual_ptr + row * C + column, inside, 0.0)
    kept = residual.dtype
    if ADD:
        x = tl.load(x_ptr + row * C + column, inside, 0.0)
        residual = (x.to(tl.float32) + residual.to(tl.float32)).to(kept)
        tl.store(residual_ptr + row * C + column, residual, inside)
    wide = residual.to(tl.float32)
    normal = (wide * tl.rsqrt(tl.sum(wide * wide) / C + eps)).to(kept).to(tl.float32)
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + row * C + column, (weight * normal).to(kept).to(out_ptr.dtype.element_ty), inside)


def add_and_norm(
    x_BC: torch.Tensor | None, residual_BC: torch.Tensor, weight_C: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Adds x to the residual, in place, and gives the RMS norm of the sum in `dtype`."""
    B, C = residual_BC.shape
    out_BC = torch.empty_like(residual_BC, dtype=dtype)
    block = triton.next_power_of_2(C)
    given = residual_BC if x_BC is None else x_BC
    _add_and_norm[(B,)](
        given, residual_BC, weight_C, out_BC, eps, C=C, BLOCK=block, ADD=x_BC is not None,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out_BC


@triton.jit
def _gated(gate_up_ptr, out_ptr, WIDTH, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, inside, 0.0)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, inside, 0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (silu * up.to(tl.float32)).to(gate.dtype), inside)


def gated(gate_up_BJ: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, both halves of one product."""
    B, width = gate_up_BJ.shape[0], gate_up_BJ.shape[1] // 2
    out_BI = gate_up_BJ.new_empty(B, width)
    _gated[(B, triton.cdiv(width, 1024))](gate_up_BJ, out_BI, width, BLOCK=1024, num_warps=4)
    return out_BI


@triton.jit
def _turned(low, high, cos, sin, kept: tl.constexpr):
    """Each product is rounded before the sum, as in the stock model; left alone, the compiler would fuse the two."""
    low_cos, high_sin = (low * cos).to(kept).to(tl.float32), (high * sin).to(kept).to(tl.float32)
    high_cos, low_sin = (high * cos).to(kept).to(tl.float32), (low * sin).to(kept).to(tl.float32)
    return (low_cos - high_sin).to(kept), (high_cos + low_sin).to(kept)


@triton.jit
def _weighed(weight_ptr, inside, normal, dtype: tl.constexpr):
    """Weight of a norm times its input brought to length 1, rounded as the stock model's norm rounds."""
    weight = tl.load(weight_ptr, inside, 0.0)
    return (weight.to(tl.float32) * normal.to(dtype).to(tl.float32)).to(weight.dtype).to(tl.float32)


@triton.jit
def _rotate_and_store(
    qkv_ptr, k_own_ptr, v_own_ptr, cos_ptr, sin_ptr, slot_ptr, first_ptr, time_ptr, q_norm_ptr, k_norm_ptr,
    eps, new_tokens,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    TIME_OF_EACH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    time = tl.load(time_ptr + row) if TIME_OF_EACH else tl.load(time_ptr)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    position = tl.load(first_ptr + row) + time
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (head < H + 2 * K) & (column < D // 2)
    place = qkv_ptr + row * (H + 2 * K) * D + head * D + column
    low = tl.load(place, inside, 0.0)
    high = tl.load(place + D // 2, inside, 0.0)
    dtype = low.dtype
    in_half = column < D // 2
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    if NORM:
        square = tl.sum(wide_low * wide_low, axis=1) + tl.sum(wide_high * wide_high, axis=1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        norm_ptr = tl.where(head < H, q_norm_ptr + column, k_norm_ptr + column)
        wide_low = _weighed(norm_ptr, in_half, wide_low * scale, dtype)
        wide_high = _weighed(norm_ptr + D // 2, in_half, wide_high * scale, dtype)
    cos = tl.load(cos_ptr + position * (D // 2) + column, in_half, 0.0)
    sin = tl.load(sin_ptr + position * (D // 2) + column, in_half, 0.0)
    turned_low, turned_high = _turned(wide_low, wide_high, cos.to(tl.float32), sin.to(tl.float32), cos.dtype)
    turned_low, turned_high = turned_low.to(dtype), turned_high.to(dtype)
    tl.store(place, turned_low, inside & (head < H))
    tl.store(place + D // 2, turned_high, inside & (head < H))
    own = slot * K * new_tokens * D + time * D + column
    is_key = inside & (head >= H) & (head < H + K)
    key_place = k_own_ptr + own + (head - H) * new_tokens * D
    tl.store(key_place, turned_low, is_key)
    tl.store(key_place + D // 2, turned_high, is_key)
    is_value = inside & (head >= H + K)
    value_place = v_own_ptr + own + (head - H - K) * new_tokens * D
    tl.store(value_place, low, is_value)
    tl.store(value_place + D // 2, high, is_value)


def rotate_and_store(
    qkv_BE: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
    rotation: tuple[torch.Tensor, torch.Tensor],
    rows: Any,
    heads: int,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> None:
    """Turns queries and keys by their position, queries in place, and puts keys and values into the rows' slots."""
    k_SKLD, v_SKLD = own
    _, K, new_tokens, D = k_SKLD.shape
    q_norm_D, k_norm_D, eps = norms or (qkv_BE, qkv_BE, 0.0)
    _rotate_and_store[(len(qkv_BE),)](
        qkv_BE, k_SKLD, v_SKLD, *rotation, rows.slot_B, rows.first_B, rows.time, q_norm_D, k_norm_D, eps, new_tokens,
        H=heads, K=K, D=D, HEADS=triton.next_power_of_2(heads + 2 * K), HALF=triton.next_power_of_2(D // 2),
        NORM=norms is not None, TIME_OF_EACH=len(rows.time) > 1, num_warps=4,
    )  # fmt: skip


@triton.jit
def _prompt_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, top_ptr, mass_ptr, start_ptr, length_ptr, first_ptr, time_ptr,
    q_row_stride, rows, columns, scale, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PER_PROGRAM: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    prompt = (tl.program_id(0) // BLOCKS).to(tl.int64)
    block = tl.program_id(0) % BLOCKS
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
        # A row that sees nothing yet has no top to subtract.
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


@triton.jit
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
    own: tuple[torch.Tensor, torch.Tensor],
    prompts: tuple[torch.Tensor, torch.Tensor],
    rows: Any,
    scratch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    heads: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """One query per row and head against its group's prompt, read once for all siblings, and the row's own keys.

    Rows of one prompt stand side by side, from `rows.start_P` on. The first heads * D columns of q_BE are the queries.
    """
    B = len(q_BE)
    P, K, columns, D = prompts[0].shape
    new_tokens = own[0].shape[2]
    out_SBHD, top_SBH, mass_SBH = scratch
    parts = triton.cdiv(columns, PROMPT_KEYS_PER_PROGRAM)
    blocks = triton.cdiv(min(rows.group_size, B) * (heads // K), QUERIES_AT_ONCE)
    common = {
        "H": heads,
        "K": K,
        "D": D,
        "WIDTH": max(16, triton.next_power_of_2(D)),
        "WINDOW": window is not None,
        # float32 policies are for comparison, and tf32 would spoil it.
        "PRECISION": "ieee" if q_BE.dtype == torch.float32 else "tf32",
    }
    _prompt_attention[(P * blocks, K, parts)](
        q_BE, *prompts, out_SBHD, top_SBH, mass_SBH, rows.start_P, rows.length_P, rows.first_B, rows.time,
        q_BE.stride(0), out_SBHD.shape[1], columns, scale, window or 0,
        BLOCKS=blocks, QUERIES=QUERIES_AT_ONCE, KEYS=KEYS_AT_ONCE, PER_PROGRAM=PROMPT_KEYS_PER_PROGRAM,
        num_warps=4, num_stages=2, **common,
    )  # fmt: skip
    out_BE = q_BE.new_empty(B, heads * D)
    _own_attention[(B, K)](
        q_BE, *own, out_SBHD, top_SBH, mass_SBH, out_BE, rows.slot_B, rows.first_B, rows.time,
        q_BE.stride(0), out_SBHD.shape[1], new_tokens, scale, window or 0,
        QUERIES=max(16, triton.next_power_of_2(heads // K)), KEYS=KEYS_AT_ONCE, PARTS=parts,
        num_warps=2 if D <= 64 else 4, num_stages=3, **common,
    )  # fmt: skip
    return out_BE


@triton.jit
def _normed(low, high, norm_ptr, column, inside, eps, dtype: tl.constexpr, D: tl.constexpr, axis: tl.constexpr):
    """A head's two halves through the norm that some models give queries and keys."""
    square = tl.sum(low * low, axis=axis) + tl.sum(high * high, axis=axis)
    scale = tl.rsqrt(square / D + eps)
    if axis == 1:
        scale = scale[:, None]
    low = _weighed(norm_ptr + column, inside, low * scale, dtype)
    return low, _weighed(norm_ptr + D // 2 + column, inside, high * scale, dtype)


@triton.jit
def _see_keys(
    q_low, q_high, top, mass, out_low, out_high, k_ptr, v_ptr, start, end, oldest, column, inside, scale,
    D: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One more stretch of keys, [start, end), of which those before `oldest` are out of the window."""
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


@triton.jit
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
    # A finished row belongs to no prompt; whatever it reads, nobody reads it.
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
    q_low, q_high = _turned(q_low, q_high, cos.to(tl.float32)[None, :], sin[None, :], cos.dtype)
    k_low, k_high = _turned(k_low, k_high, cos.to(tl.float32), sin, cos.dtype)
    q_low, q_high, k_low, k_high = q_low.to(dtype), q_high.to(dtype), k_low.to(dtype), k_high.to(dtype)
    own, shared = (slot * K + key_head) * new_tokens * D, (prompt * K + key_head) * columns * D
    k_own, v_own = k_own_ptr + own, v_own_ptr + own
    tl.store(k_own + time * D + column, k_low, inside)
    tl.store(k_own + time * D + D // 2 + column, k_high, inside)
    tl.store(v_own + time * D + column, v_low, inside)
    tl.store(v_own + time * D + D // 2 + column, v_high, inside)
    # The row's newest key is at hand; the stretches hold the older ones.
    top = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32)[None, :], axis=1)
    top = (top + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32)[None, :], axis=1)) * scale
    mass = tl.full([QUERIES], 1.0, tl.float32)
    out_low = tl.zeros([QUERIES, HALF], tl.float32) + v_low.to(tl.float32)[None, :]
    out_high = tl.zeros([QUERIES, HALF], tl.float32) + v_high.to(tl.float32)[None, :]
    oldest = tl.maximum(0, position - window + 1) if WINDOW else 0
    oldest_own = tl.maximum(0, oldest - length) if WINDOW else 0
    top, mass, out_low, out_high = _see_keys(
        q_low, q_high, top, mass, out_low, out_high, k_prompt_ptr + shared, v_prompt_ptr + shared,
        oldest // KEYS * KEYS, length, oldest, column, inside, scale, D, KEYS, PRECISION,
    )  # fmt: skip
    top, mass, out_low, out_high = _see_keys(
        q_low, q_high, top, mass, out_low, out_high, k_own, v_own,
        oldest_own // KEYS * KEYS, time, oldest_own, column, inside, scale, D, KEYS, PRECISION,
    )  # fmt: skip
    out = out_ptr + (row * H + key_head * R + query)[:, None] * D + column[None, :]
    tl.store(out, (out_low / mass[:, None]).to(dtype), shape)
    tl.store(out + D // 2, (out_high / mass[:, None]).to(dtype), shape)


def fits_one_program(rows: int, prompt_PKQD: torch.Tensor) -> bool:
    """Few rows with short prompts are better served by one program each that does everything: what they lack is not
    bandwidth but time to start kernels."""
    return rows <= ROWS_FOR_ONE_PROGRAM and prompt_PKQD.shape[2] <= 2 * PROMPT_KEYS_PER_PROGRAM


def whole_attention(
    qkv_BE: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
    prompts: tuple[torch.Tensor, torch.Tensor],
    rotation: tuple[torch.Tensor, torch.Tensor],
    rows: Any,
    heads: int,
    scale: float,
    window: int | None,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor:
    """`rotate_and_store` and `attention` in one kernel, each row reading its prompt for itself."""
    P, K, columns, D = prompts[0].shape
    q_norm_D, k_norm_D, eps = norms or (qkv_BE, qkv_BE, 0.0)
    out_BE = qkv_BE.new_empty(len(qkv_BE), heads * D)
    _whole_attention[(len(qkv_BE), K)](
        qkv_BE, *own, *prompts, out_BE, *rotation, q_norm_D, k_norm_D,
        rows.slot_B, rows.first_B, rows.prompt_B, rows.length_P, rows.time, eps, P, columns, own[0].shape[2], scale,
        window or 0, H=heads, K=K, D=D, HALF=max(16, triton.next_power_of_2(D // 2)),
        QUERIES=max(16, triton.next_power_of_2(heads // K)), KEYS=KEYS_AT_ONCE, NORM=norms is not None,
        WINDOW=window is not None, PRECISION="ieee" if qkv_BE.dtype == torch.float32 else "tf32",
        num_warps=2 if D <= 64 else 4, num_stages=2,
    )  # fmt: skip
    return out_BE


@triton.jit
def _weigh(logits_ptr, source_ptr, top_ptr, mass_ptr, V, parts, inverse_temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    source = tl.load(source_ptr + row).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32) * inverse_temperature
    top = tl.max(logit)
    tl.store(top_ptr + row * parts + part, top)
    tl.store(mass_ptr + row * parts + part, tl.sum(tl.exp(logit - top)))


@triton.jit
def _pick(
    logits_ptr, source_ptr, top_ptr, mass_ptr, noise_ptr, slot_ptr, going_ptr, token_ptr, tokens_ptr, logp_ptr,
    length_ptr, ends_ptr, time_ptr, V, parts, inverse_temperature, new_tokens,
    GREEDY: tl.constexpr, ENDS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    time = tl.load(time_ptr)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    source = tl.load(source_ptr + row).to(tl.int64)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * parts + part, part < parts, float("-inf"))
    top = tl.max(tops)
    masses = tl.load(mass_ptr + row * parts + part, part < parts, 0.0) * tl.exp(tops - top)
    total = tl.sum(masses)
    # Inverse transform in two strides: the part in which the cumulative probability passes the noise, then the token.
    if GREEDY:
        chosen_part = tl.min(tl.where(tops == top, part, PARTS))
        rest = 0.0
    else:
        target = tl.load(noise_ptr + slot * new_tokens + time) * total
        cumulative = tl.cumsum(masses, 0)
        last = tl.max(tl.where(masses > 0, part, 0))
        chosen_part = tl.minimum(tl.sum((cumulative <= target).to(tl.int32)), last)
        rest = target - tl.sum(tl.where(part < chosen_part, masses, 0.0))
    column = chosen_part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32) * inverse_temperature
    weight = tl.exp(logit - top)
    if GREEDY:
        token = tl.min(tl.where(logit == top, column, 2147483647))
    else:
        last_token = tl.max(tl.where(weight > 0, column, 0))
        token = tl.minimum(chosen_part * BLOCK + tl.sum((tl.cumsum(weight, 0) <= rest).to(tl.int32)), last_token)
    logp = tl.sum(tl.where(column == token, logit, 0.0)) - top - tl.log(total)
    going = tl.load(going_ptr + row)
    ended = token < 0
    for i in tl.static_range(ENDS):
        ended = ended | (token == tl.load(ends_ptr + i))
    tl.store(token_ptr + row, token)
    if going:
        tl.store(tokens_ptr + slot * new_tokens + time, token)
        tl.store(logp_ptr + slot * new_tokens + time, logp)
        if ended:
            tl.store(length_ptr + slot, time + 1)
            tl.store(going_ptr + row, 0)


def sample_tokens(
    logits_UV: torch.Tensor,
    source_B: torch.Tensor,
    rows: Any,
    results: Any,
    temperature: float,
    scratch: tuple[Any, Any],
) -> None:
    """The next token of every row by inverse transform from its own noise, and its log-probability; temperature 0 takes
    the likeliest. Row b reads the logits at source_B[b]. Logits are read once and no copy of them is made."""
    B, V = len(source_B), logits_UV.shape[1]
    top_BX, mass_BX = scratch
    parts = triton.cdiv(V, LOGITS_PER_PROGRAM)
    inverse = 1.0 / (temperature or 1.0)
    _weigh[(B, parts)](logits_UV, source_B, top_BX, mass_BX, V, parts, inverse, BLOCK=LOGITS_PER_PROGRAM, num_warps=8)
    _pick[(B,)](
        logits_UV, source_B, top_BX, mass_BX, results.noise_SL, rows.slot_B, rows.going_B, rows.token_B,
        results.tokens_SL, results.logp_SL, results.length_S, results.ends, rows.time,
        V, parts, inverse, results.tokens_SL.shape[1],
        GREEDY=temperature == 0, ENDS=len(results.ends), PARTS=triton.next_power_of_2(parts), BLOCK=LOGITS_PER_PROGRAM,
        num_warps=8,
    )  # fmt: skip
