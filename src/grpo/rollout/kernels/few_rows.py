"""Products of few rows, with what comes before and after them in the same kernel: the norm, the gate, the sum.

Few rows take no time to compute; what takes time is starting a kernel, and waiting for memory. So a layer has four of
these besides attention, and not seven kernels: normed product (queries, keys, values), product onto the residual,
normed gated product, product onto the residual. Many programs share the columns of a result, and each norms its rows
again; what they need for it, the sum of a row's squares, the product before has left behind in parts. They round where
the kernels they replace round, and sum in an order of their own, which is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from grpo.fused.weights import Linear, Weights
from grpo.rollout.kernels.dependent import _wait, dependent

MOST_TERMS = 32 * 576 * 1536
"""Of the product that ends a layer: 32 rows of SmolLM2-135M, 2 of Qwen2.5-1.5B. Beyond, cuBLAS wins: with 64 rows its
products and the kernels between them take 0.96 ms a token on an H200, and these 0.98."""
PROGRAMS = 96
"""As many at least, where a result has enough columns: an H200 has 132 processors."""


@dataclass(frozen=True)
class Tile:
    """What one program computes, and how much of its inputs it holds at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "DEPTH": self.depth,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def tile_for(rows: int, columns: int, depth: int) -> Tile:
    """For a result [rows, columns] of products of `depth` terms; within the shared memory of any GPU from Ampere on."""
    high = 16 if rows <= 32 else 32 if rows <= 128 else 64
    blocks = triton.cdiv(rows, high)
    wide = next((width for width in (64, 32) if blocks * triton.cdiv(columns, width) >= PROGRAMS), 16)
    deep = min(128 if high * wide <= 1024 else 64, max(16, triton.next_power_of_2(depth)))
    return Tile(high, wide, deep, warps=4, stages=4 if high * wide <= 512 else 3)


def fits_few_rows(weights: Weights, rows: int) -> bool:
    """Adapters are products of their own, beside the wide ones."""
    if weights.dtype.itemsize != 2 or not weights.head.is_cuda:
        return False
    few = rows * weights.layers[0].down.weight.numel() <= MOST_TERMS
    return few and not any(maps.adapter for layer in weights.layers for maps in layer.maps)


@triton.jit
def _fetch(weight_ptr, first, N, K: tl.constexpr, ROWS: tl.constexpr, FETCH: tl.constexpr):
    """Asks for `ROWS` rows of a weight [N, K] to be near when they are needed: no kernel of a step writes them, so this
    needs no wait, and their way from memory takes as long as a norm."""
    if FETCH:
        LINE: tl.constexpr = 128 // (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
        row = tl.minimum(first + tl.arange(0, ROWS), N - 1).to(tl.int64)
        for start in range(0, K, 16 * LINE):
            column = tl.minimum(start + LINE * tl.arange(0, 16), K - 1)
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
                "=r,l",
                [(weight_ptr + row[:, None] * K + column[None, :]).to(tl.int64)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


@triton.jit
def _scale(
    x_ptr, squares_ptr, row, inside, eps, parts,
    K: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """What each row's norm multiplies it by: from its squares, or from the row where nobody has summed them yet."""
    if PARTS:
        part = tl.arange(0, PARTS)
        inside = inside[:, None] & (part < parts)[None, :]
        square = tl.load(squares_ptr + row[:, None] * parts + part[None, :], inside, 0.0)
    else:
        square = tl.zeros([ROWS, DEPTH], tl.float32)
        for start in tl.static_range(0, K, DEPTH):
            column = start + tl.arange(0, DEPTH)
            x = tl.load(x_ptr + row[:, None] * K + column[None, :], inside[:, None] & (column < K)[None, :], 0.0)
            square += x.to(tl.float32) * x.to(tl.float32)
    return tl.rsqrt(tl.sum(square, axis=1) / K + eps)


@triton.jit
def _normed(x_ptr, norm_ptr, row, inside, scale, start, dtype: tl.constexpr, K: tl.constexpr, DEPTH: tl.constexpr):
    """The next columns of the rows' norm, rounded as `fused.kernels.norm` rounds them."""
    column = start + tl.arange(0, DEPTH)
    x = tl.load(x_ptr + row[:, None] * K + column[None, :], inside[:, None] & (column < K)[None, :], 0.0)
    weight = tl.load(norm_ptr + column, column < K, 0.0).to(tl.float32)
    return (x.to(tl.float32) * scale[:, None] * weight[None, :]).to(dtype)


@triton.jit
def _weight(weight_ptr, column, there, start, K: tl.constexpr, DEPTH: tl.constexpr):
    """[DEPTH, columns] of a weight that is kept [columns, K]."""
    depth = start + tl.arange(0, DEPTH)
    return tl.load(weight_ptr + column[None, :] * K + depth[:, None], there[None, :] & (depth < K)[:, None], 0.0)


@triton.jit
def _biased(total, bias_ptr, column, there, BIAS: tl.constexpr):
    if BIAS:
        total += tl.load(bias_ptr + column, there, 0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def _normed_product(
    x_ptr, squares_ptr, norm_ptr, weight_ptr, bias_ptr, out_ptr, B, N, eps, parts,
    K: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, FETCH: tl.constexpr, DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    _fetch(weight_ptr, tl.program_id(0) * COLUMNS, N, K, COLUMNS, FETCH)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there, inside = column < N, row < B
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    _wait(DEPENDENT)
    scale = _scale(x_ptr, squares_ptr, row, inside, eps, parts, K, PARTS, ROWS, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        x = _normed(x_ptr, norm_ptr, row, inside, scale, start, dtype, K, DEPTH)
        weight = _weight(weight_ptr, column, there, start, K, DEPTH)
        total += tl.dot(x, weight, input_precision=PRECISION).to(tl.float32)
    total = _biased(total, bias_ptr, column, there, BIAS)
    tl.store(out_ptr + row[:, None] * N + column[None, :], total.to(dtype), inside[:, None] & there[None, :])


@triton.jit
def _normed_gated_product(
    x_ptr, squares_ptr, norm_ptr, weight_ptr, bias_ptr, out_ptr, B, N, eps, parts,
    K: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, FETCH: tl.constexpr, DEPENDENT: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    _fetch(weight_ptr, tl.program_id(0) * COLUMNS, 2 * N, K, COLUMNS, FETCH)
    _fetch(weight_ptr, N + tl.program_id(0) * COLUMNS, 2 * N, K, COLUMNS, FETCH)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there, inside = column < N, row < B
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    _wait(DEPENDENT)
    scale = _scale(x_ptr, squares_ptr, row, inside, eps, parts, K, PARTS, ROWS, DEPTH)
    gate, up = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        x = _normed(x_ptr, norm_ptr, row, inside, scale, start, dtype, K, DEPTH)
        of_gate = _weight(weight_ptr, column, there, start, K, DEPTH)
        of_up = _weight(weight_ptr, column + N, there, start, K, DEPTH)
        gate += tl.dot(x, of_gate, input_precision=PRECISION).to(tl.float32)
        up += tl.dot(x, of_up, input_precision=PRECISION).to(tl.float32)
    # Both are rounded first: training keeps them so for its backward pass.
    gate = _biased(gate, bias_ptr, column, there, BIAS).to(dtype).to(tl.float32)
    up = _biased(up, bias_ptr + N, column, there, BIAS).to(dtype).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row[:, None] * N + column[None, :], out.to(dtype), inside[:, None] & there[None, :])


@triton.jit
def _product_onto(
    x_ptr, weight_ptr, bias_ptr, sum_ptr, squares_ptr, B, N,
    K: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, FETCH: tl.constexpr, DEPENDENT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    _fetch(weight_ptr, tl.program_id(0) * COLUMNS, N, K, COLUMNS, FETCH)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there, inside = column < N, row < B
    place, both = sum_ptr + row[:, None] * N + column[None, :], inside[:, None] & there[None, :]
    _wait(DEPENDENT)
    already = tl.load(place, both, 0.0)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        x = tl.load(x_ptr + row[:, None] * K + depth[None, :], inside[:, None] & (depth < K)[None, :], 0.0)
        weight = _weight(weight_ptr, column, there, start, K, DEPTH)
        total += tl.dot(x, weight, input_precision=PRECISION).to(tl.float32)
    total = _biased(total, bias_ptr, column, there, BIAS) + already.to(tl.float32)
    kept = total.to(already.dtype)
    tl.store(place, kept, both)
    square = tl.where(both, kept.to(tl.float32) * kept.to(tl.float32), 0.0)
    tl.store(squares_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.sum(square, axis=1), inside)


class FewRows:
    """The residual stream of few rows, and the parts of their squares' sums."""

    def __init__(self, residual_BC: torch.Tensor):
        self.residual_BC = residual_BC
        self.squares_BX: torch.Tensor | None = None

    def normed(self, norm: Any, maps: Linear) -> torch.Tensor:
        """maps(norm(residual)), in the weights' precision."""
        return self._normed(_normed_product, norm, maps, len(maps.weight))

    def normed_and_gated(self, norm: Any, maps: Linear) -> torch.Tensor:
        """silu(gate) · up of maps(norm(residual)), whose columns are all of gate's and then all of up's."""
        return self._normed(_normed_gated_product, norm, maps, len(maps.weight) // 2)

    def add(self, x_BI: torch.Tensor, maps: Linear) -> None:
        """maps(x), in place."""
        B, C = self.residual_BC.shape
        tile = tile_for(B, C, x_BI.shape[1])
        programs = triton.cdiv(C, tile.columns)
        self.squares_BX = x_BI.new_empty(B, programs, dtype=torch.float32)
        _product_onto[(programs, triton.cdiv(B, tile.rows))](
            x_BI, maps.weight, _bias(maps), self.residual_BC, self.squares_BX, B, C, **_options(maps), **tile.options()
        )

    def _normed(self, kernel: Any, norm: Any, maps: Linear, columns: int) -> torch.Tensor:
        x_BC, squares_BX, (B, C) = self.residual_BC, self.squares_BX, self.residual_BC.shape
        out_BN, tile = x_BC.new_empty(B, columns, dtype=maps.weight.dtype), tile_for(B, columns, C)
        parts = 0 if squares_BX is None else squares_BX.shape[1]
        kernel[(triton.cdiv(columns, tile.columns), triton.cdiv(B, tile.rows))](
            x_BC, x_BC if squares_BX is None else squares_BX, norm.weight, maps.weight, _bias(maps), out_BN,
            B, columns, norm.variance_epsilon, parts,
            PARTS=triton.next_power_of_2(parts) if parts else 0, **_options(maps), **tile.options(),
        )  # fmt: skip
        return out_BN


def _bias(maps: Linear) -> torch.Tensor:
    return maps.weight if maps.bias is None else maps.bias  # the former is never read


def _options(maps: Linear) -> dict[str, Any]:
    weight = maps.weight
    return {
        "K": weight.shape[1],
        "BIAS": maps.bias is not None,
        # float32 policies are for comparison, and tf32 would spoil it.
        "PRECISION": "ieee" if weight.dtype == torch.float32 else "tf32",
        "FETCH": weight.is_cuda,
        **dependent(weight.device),
    }
