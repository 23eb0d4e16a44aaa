"""Rotary embedding of queries and keys; keys and values are stored in their blocks."""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.launch import options, release, wait
from grpo.rollout.schedule import BLOCK_TOKENS

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines by position, [positions, D / 2]."""
Norms = tuple[torch.Tensor, torch.Tensor, float]
"""Weights of the norms of queries and keys, and epsilon."""
KeyValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, each [blocks, K, tokens of a block, D]."""


class Positions(Protocol):
    """Where each row's token belongs: `batch.DecodeBatch`, or `prefill.TokenPositions`."""

    owner_B: torch.Tensor
    """Row of the block table: a completion, or a prompt."""
    first_B: torch.Tensor
    """Position of the owner's first token."""
    time_B: torch.Tensor
    """The owner's tokens up to and with this one."""


@triton.jit
def rotated(x, other, sign, cos, sin):
    """Rotary embedding of x. `other`: the number at the same place in the other half of the head; `sign`: -1 in the
    first half, 1 in the second. Products are not rounded, as in `model/fused/kernels.py`."""
    return x * cos.to(tl.float32) + sign * other * sin.to(tl.float32)


@triton.jit
def biased(x_ptr, bias_ptr, inside, BIAS: tl.constexpr):
    """Numbers of a matmul's unrounded result, with their bias."""
    x = tl.load(x_ptr, inside, 0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias_ptr, inside, 0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["table_width"])
def _rotate_and_store(
    qkv_ptr, bias_ptr, out_ptr, k_ptr, v_ptr, table_ptr, cos_ptr, sin_ptr, owner_ptr, first_ptr, time_ptr,
    q_norm_ptr, k_norm_ptr, eps, table_width,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(DEPENDENT)
    release(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    index = tl.load(time_ptr + row) - 1
    position = tl.load(first_ptr + row) + index
    block = tl.load(table_ptr + tl.load(owner_ptr + row).to(tl.int64) * table_width + index // BLOCK).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (head < H + 2 * K) & (column < D // 2)
    place, first = head * D + column, row * (H + 2 * K) * D
    low = biased(qkv_ptr + first + place, bias_ptr + place, inside, BIAS)
    high = biased(qkv_ptr + first + place + D // 2, bias_ptr + place + D // 2, inside, BIAS)
    turns = inside & (head < H + K)
    normal_low, normal_high = low, high
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / D + eps)[:, None]
        norm_ptr = tl.where(head < H, q_norm_ptr + column, k_norm_ptr + column)
        normal_low = low * scale * tl.load(norm_ptr, turns, 0.0).to(tl.float32)
        normal_high = high * scale * tl.load(norm_ptr + D // 2, turns, 0.0).to(tl.float32)
    in_half = column < D // 2
    cos = tl.load(cos_ptr + position * (D // 2) + column, in_half, 0.0)
    sin = tl.load(sin_ptr + position * (D // 2) + column, in_half, 0.0)
    dtype = out_ptr.dtype.element_ty
    rotated_low = rotated(normal_low, normal_high, -1.0, cos, sin).to(dtype)
    rotated_high = rotated(normal_high, normal_low, 1.0, cos, sin).to(dtype)
    low, high = low.to(dtype), high.to(dtype)
    tl.store(out_ptr + first + place, tl.where(turns, rotated_low, low), inside)
    tl.store(out_ptr + first + place + D // 2, tl.where(turns, rotated_high, high), inside)
    own = (block * K * BLOCK + index % BLOCK) * D + column
    is_key = inside & (head >= H) & (head < H + K)
    key_place = k_ptr + own + (head - H) * BLOCK * D
    tl.store(key_place, rotated_low, is_key)
    tl.store(key_place + D // 2, rotated_high, is_key)
    is_value = inside & (head >= H + K)
    value_place = v_ptr + own + (head - H - K) * BLOCK * D
    tl.store(value_place, low, is_value)
    tl.store(value_place + D // 2, high, is_value)


def rotate_and_store(
    qkv_BE: torch.Tensor,
    bias_E: torch.Tensor | None,
    cached: KeyValues,
    table: torch.Tensor,
    rotation: Rotation,
    positions: Positions,
    heads: int,
    norms: Norms | None = None,
    dependent: bool = False,
) -> torch.Tensor:
    """Adds the bias, rotates queries and keys, and stores keys and values in the blocks that `table` names for the
    rows. Returns queries, keys and values in the precision of the cache."""
    _, K, _, D = cached[0].shape
    q_norm_D, k_norm_D, eps = norms or (qkv_BE, qkv_BE, 0.0)
    out_BE = torch.empty_like(qkv_BE, dtype=cached[0].dtype)
    _rotate_and_store[(len(qkv_BE),)](
        qkv_BE, qkv_BE if bias_E is None else bias_E, out_BE, *cached, table, *rotation,
        positions.owner_B, positions.first_B, positions.time_B, q_norm_D, k_norm_D, eps, table.stride(0),
        H=heads, K=K, D=D, HEADS=triton.next_power_of_2(heads + 2 * K), HALF=triton.next_power_of_2(D // 2),
        BIAS=bias_E is not None, NORM=norms is not None, BLOCK=BLOCK_TOKENS, num_warps=4,
        **options(qkv_BE.device, dependent),
    )  # fmt: skip
    return out_BE
