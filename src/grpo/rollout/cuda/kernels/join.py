"""Joins the attention of one query to several parts of its keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.blocks import PROGRAMS
from grpo.rollout.cuda.kernels.launch import options, release, wait

MOST_SPLITS = 32

Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""By part of the keys and row (the first part's rows, then the second's), and by head: weighted sum of values, greatest
score in units of log₂, and sum of weights."""


def splits(rows: int, key_heads: int, blocks: int) -> int:
    """Programs that share the keys of one row and key head, so that few rows use the whole GPU.

    `blocks`: those of the longest row. A program that finds no keys costs next to nothing, so one number serves all
    lengths.
    """
    fill = PROGRAMS // (rows * key_heads)
    return max(1, min(fill, MOST_SPLITS, blocks // 2))


@triton.jit(do_not_specialize=["rows", "parts"])
def _join(
    out_ptr, top_ptr, mass_ptr, result_ptr, rows, parts,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, column = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    exists, in_head = part < parts, column < D
    place = (part * rows + row) * H + head
    wait(DEPENDENT)
    release(DEPENDENT)
    tops = tl.load(top_ptr + place, exists, float("-inf"))
    weight = tl.exp2(tops - tl.max(tops))
    mass = tl.sum(weight * tl.load(mass_ptr + place, exists, 0.0))
    outs = tl.load(out_ptr + place[:, None] * D + column[None, :], exists[:, None] & in_head[None, :], 0.0)
    result = tl.sum(weight[:, None] * outs, axis=0) / mass
    tl.store(result_ptr + (row * H + head) * D + column, result.to(result_ptr.dtype.element_ty), in_head)


def join(partial: Partial, out_BE: torch.Tensor, parts: int, dependent: bool = False) -> torch.Tensor:
    """Writes to `out_BE` the attention to the first `parts` parts."""
    _, H, D = partial[0].shape
    _join[(len(out_BE), H)](
        *partial, out_BE, len(out_BE), parts, H=H, D=D, WIDTH=triton.next_power_of_2(D),
        PARTS=triton.next_power_of_2(parts), num_warps=1 if parts <= 8 else 2,
        **options(out_BE.device, dependent),
    )  # fmt: skip
    return out_BE
