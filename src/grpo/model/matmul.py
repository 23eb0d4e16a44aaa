"""Matrix products with a wider result than their inputs, without rounding in between."""

from __future__ import annotations

from typing import Any

import torch


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    onto: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    in_place: bool = False,
) -> torch.Tensor:
    """a · b, added to `onto`; in the precision of `onto`, or in `dtype`. A GPU does not round the product before."""
    wanted = onto.dtype if onto is not None else dtype or a.dtype
    if wanted == a.dtype:
        if onto is None:
            return a @ b
        return onto.addmm_(a, b) if in_place else torch.addmm(onto, a, b)
    if not a.is_cuda:
        found = (a @ b).to(wanted)
        return found if onto is None else onto.add_(found) if in_place else onto + found
    if onto is None:
        return torch.mm(a, b, out_dtype=wanted)
    if in_place:
        return torch.ops.aten.addmm.dtype_out(onto, a, b, wanted, out=onto)
    return torch.addmm(onto, a, b, out_dtype=wanted)


def matmul_fp32_out(hidden: torch.Tensor, weight_VC: torch.Tensor) -> torch.Tensor:
    """hidden · weightᵀ in float32, or wider where the inputs are."""
    if hidden.is_cuda and hidden.dtype.itemsize == 2:
        return _MatmulFp32Out.apply(hidden, weight_VC)
    found = torch.nn.functional.linear(hidden, weight_VC)
    return found if found.dtype == torch.float64 else found.float()


class _MatmulFp32Out(torch.autograd.Function):
    """16 bits in, float32 out: rounding a logit of 20 to bfloat16 changes its log-probability by up to 0.06."""

    @staticmethod
    def forward(ctx: Any, hidden_AC: torch.Tensor, weight_VC: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden_AC, weight_VC)
        return torch.mm(hidden_AC, weight_VC.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad_AV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden_AC, weight_VC = ctx.saved_tensors
        grad_AV = grad_AV.to(hidden_AC.dtype)
        # With LoRA the output layer is frozen: its gradient would be a third of this function's work, unused.
        return grad_AV @ weight_VC, grad_AV.t() @ hidden_AC if ctx.needs_input_grad[1] else None
