"""The residual stream: its beginning, sums, and the norm that follows each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from grpo.rollout.cuda.kernels.launch import options, release, wait


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMS norm."""

    weight_C: torch.Tensor
    eps: float
    dtype: torch.dtype
    """That of its output."""
    dependent: bool = False
    """Whether its kernel is a dependent launch."""


@triton.jit(do_not_specialize=["rows"])
def _norm(
    residual_ptr, part_ptr, token_ptr, embedding_ptr, weight_ptr, out_ptr, eps, rows,
    C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, EMBED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    wait(DEPENDENT)
    release(DEPENDENT)
    kept = residual_ptr.dtype.element_ty
    source = residual_ptr + row * C
    if EMBED:
        source = embedding_ptr + tl.load(token_ptr + row).to(tl.int64) * C
    x = tl.load(source + column, inside, 0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(part_ptr + (part * rows + row) * C + column, inside, 0.0)
    x = x.to(kept).to(tl.float32)
    if EMBED or PARTS > 0:
        tl.store(residual_ptr + row * C + column, x.to(kept), inside)
    scale = tl.rsqrt(tl.sum(x * x) / C + eps)
    tl.store(out_ptr + row * C + column, (x * scale * weight).to(out_ptr.dtype.element_ty), inside)


def embed_and_norm(token_B: torch.Tensor, embedding_VC: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """(embeddings of the tokens, their norm)."""
    residual_BC = embedding_VC.new_empty(len(token_B), embedding_VC.shape[1])
    return residual_BC, _launch(residual_BC, None, (token_B, embedding_VC), norm)


def add_and_norm(residual_BC: torch.Tensor, parts_SBC: torch.Tensor | None, norm: Norm) -> torch.Tensor:
    """Adds the parts to the residual, in place; returns its norm."""
    return _launch(residual_BC, parts_SBC, None, norm)


def _launch(
    residual_BC: torch.Tensor,
    parts_SBC: torch.Tensor | None,
    embedded: tuple[torch.Tensor, torch.Tensor] | None,
    norm: Norm,
) -> torch.Tensor:
    (B, C), parts = residual_BC.shape, 0 if parts_SBC is None else len(parts_SBC)
    out_BC = residual_BC.new_empty(B, C, dtype=norm.dtype)
    _norm[(B,)](
        residual_BC, residual_BC if parts_SBC is None else parts_SBC, *(embedded or (residual_BC, residual_BC)),
        norm.weight_C, out_BC, norm.eps, B, C=C, BLOCK=triton.next_power_of_2(C), PARTS=parts,
        EMBED=embedded is not None, num_warps=4 if C <= 2048 else 8, **options(residual_BC.device, norm.dependent),
    )  # fmt: skip
    return out_BC
