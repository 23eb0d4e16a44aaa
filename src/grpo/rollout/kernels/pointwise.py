"""Norms and the gate of the feed-forward layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


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
