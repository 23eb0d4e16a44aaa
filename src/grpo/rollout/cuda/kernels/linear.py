"""Matmuls of few rows, with what follows them: a bias, the gate of a feed-forward layer, or a sum in several parts.

With few rows a matmul takes as long as reading its weights. Each program reads the weights of some output columns, or,
where these are too few to fill the GPU, a part of their depth; `residual.py` adds the parts. The first weights are on
their way before the inputs are ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.launch import options, release, wait

FEW_ROWS = 64
"""Most rows of a large matmul here; with more, cuBLAS is faster."""
SMALL_MATMUL = 3 * 2**28
"""Most multiplications of a small matmul, which may have more rows."""
PROCESSORS = 132
"""Multiprocessors of an H200."""
COLUMNS = 64
"""Columns of a program: as many as tensor cores multiply at a time."""
PREFETCHED = 2
"""Steps of the loop whose weights are fetched into the cache early."""
EARLY_RELEASE = 2**22
"""Most weights of a matmul that lets the next kernel be set up when it begins, and not when it ends."""


@dataclass(frozen=True)
class Tile:
    """The part of a matmul that one program computes, with `COLUMNS` columns."""

    rows: int
    depth: int
    """Of one step of its loop."""
    stages: int
    """Steps whose inputs are loaded at a time."""


@triton.jit
def _fetch(weight_ptr):
    """Loads a cache line into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weight_ptr], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, depth, part_depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, PREFETCHED: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, ROWS)
    part = tl.program_id(1)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) // tiles * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, DEPTH)
    first = part * part_depth
    last = tl.minimum(first + part_depth, depth)
    # Rows and columns beyond the last are read from the beginning, and not stored.
    weight_row = (column % columns).to(tl.int64) * depth
    up = columns.to(tl.int64) * depth
    if DEPENDENT:
        line = tl.arange(0, max(1, DEPTH // 64)) * 64
        for i in tl.static_range(PREFETCHED):
            lines = weight_ptr + weight_row[:, None] + tl.minimum(first + i * DEPTH + line, depth - 1)[None, :]
            _fetch(lines)
            if GATE:
                _fetch(lines + up)
    wait(DEPENDENT)
    if EARLY:
        release(DEPENDENT)
    x = x_ptr + (row % rows)[:, None].to(tl.int64) * depth + (first + step)[None, :]
    weight = weight_ptr + weight_row[:, None] + (first + step)[None, :]
    # Weights are the left factor: tensor cores multiply 64 of their rows by any 16 of the batch.
    out = tl.zeros([COLUMNS, ROWS], tl.float32)
    out_up = tl.zeros([COLUMNS, ROWS], tl.float32)
    for _ in tl.range(first, last, DEPTH, num_stages=STAGES):
        x_t = tl.trans(tl.load(x))
        out = tl.dot(tl.load(weight), x_t, out, input_precision=PRECISION)
        if GATE:
            out_up = tl.dot(tl.load(weight + up), x_t, out_up, input_precision=PRECISION)
        x += DEPTH
        weight += DEPTH
    if not EARLY:
        release(DEPENDENT)
    if BIAS:
        biased = column < tl.where(part == 0, columns, 0)  # in one of the parts
        out += tl.load(bias_ptr + column, biased, 0.0).to(tl.float32)[:, None]
        if GATE:
            out_up += tl.load(bias_ptr + columns + column, biased, 0.0).to(tl.float32)[:, None]
    kept = x_ptr.dtype.element_ty
    if GATE:  # gate and up are rounded, as between two kernels
        gate = out.to(kept).to(tl.float32)
        out = gate / (1.0 + tl.exp(-gate)) * out_up.to(kept).to(tl.float32)
    place = (part * rows + row)[None, :].to(tl.int64) * columns + column[:, None]
    inside = (row < rows)[None, :] & (column < columns)[:, None]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), inside)


def fits_few_rows(rows: int, columns: int, weight: torch.Tensor) -> bool:
    """Whether these kernels are faster than cuBLAS for a matmul with this result, in 16 bits."""
    depth = weight.shape[1]
    few = rows <= FEW_ROWS or rows * columns * depth <= SMALL_MATMUL
    return few and weight.element_size() == 2 and depth % 32 == 0


def tile_of(x_BC: torch.Tensor, columns: int, gate: bool) -> Tile:
    rows, depth = x_BC.shape
    height = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 256 else 128
    most_steps = 64 if gate or height == 128 else 128
    step = next(step for step in (128, 64, 32) if step <= most_steps and depth % step == 0)
    programs = triton.cdiv(rows, height) * triton.cdiv(columns, COLUMNS)
    # Either one program has a multiprocessor's memory, or two share it.
    shared = PROCESSORS < programs <= 2 * PROCESSORS
    most = _shared_memory(x_BC.device) // (2 if shared else 1)
    stage = (COLUMNS * (1 + gate) + height) * step * x_BC.element_size()
    return Tile(height, step, max(2, min(4 if shared else 6, most // stage)))


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program can use, less what the compiler adds."""
    if device.type != "cuda":
        return 220 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin - 4096  # type: ignore[attr-defined]


def parts_of(tile: Tile, rows: int, columns: int, depth: int) -> int:
    """Programs that share the depth of a sum, if there are enough steps for two each."""
    tiles, parts = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, COLUMNS), 1
    while 2 * parts * tiles <= PROCESSORS and depth >= 4 * parts * tile.depth:
        parts *= 2
    return triton.cdiv(depth, _part_depth(tile, depth, parts))


def _part_depth(tile: Tile, depth: int, parts: int) -> int:
    return triton.cdiv(depth, parts * tile.depth) * tile.depth


def project(x_BC: torch.Tensor, weight_EC: torch.Tensor) -> torch.Tensor:
    """x · weightᵀ in float32."""
    columns = len(weight_EC)
    out_BE = x_BC.new_empty(len(x_BC), columns, dtype=torch.float32)
    _launch(x_BC, weight_EC, None, out_BE, tile_of(x_BC, columns, False))
    return out_BE


def project_and_gate(x_BC: torch.Tensor, weight_JC: torch.Tensor, bias_J: torch.Tensor | None) -> torch.Tensor:
    """silu(gate) · up; `weight_JC` and `bias_J` are those of both, concatenated."""
    columns = len(weight_JC) // 2
    out_BI = x_BC.new_empty(len(x_BC), columns)
    _launch(x_BC, weight_JC, bias_J, out_BI, tile_of(x_BC, columns, True), gate=True)
    return out_BI


def project_in_parts(x_BI: torch.Tensor, weight_CI: torch.Tensor, bias_C: torch.Tensor | None) -> torch.Tensor:
    """Float32 parts [S, B, C] whose sum is x · weightᵀ + bias."""
    (rows, depth), columns = x_BI.shape, len(weight_CI)
    tile = tile_of(x_BI, columns, False)
    parts = parts_of(tile, rows, columns, depth)
    out_SBC = x_BI.new_empty(parts, rows, columns, dtype=torch.float32)
    _launch(x_BI, weight_CI, bias_C, out_SBC, tile, parts)
    return out_SBC


def _launch(
    x_BC: torch.Tensor,
    weight_EC: torch.Tensor,
    bias_E: torch.Tensor | None,
    out: torch.Tensor,
    tile: Tile,
    parts: int = 1,
    *,
    gate: bool = False,
) -> None:
    (rows, depth), columns = x_BC.shape, out.shape[-1]
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, COLUMNS)
    _linear[(programs, parts)](
        x_BC, weight_EC, x_BC if bias_E is None else bias_E, out, rows, columns, depth,
        _part_depth(tile, depth, parts), ROWS=tile.rows, COLUMNS=COLUMNS, DEPTH=tile.depth, STAGES=tile.stages,
        PREFETCHED=PREFETCHED, BIAS=bias_E is not None, GATE=gate, EARLY=weight_EC.numel() <= EARLY_RELEASE,
        PRECISION="ieee" if x_BC.dtype == torch.float32 else "tf32", num_warps=4, **options(x_BC.device, True),
    )  # fmt: skip
