"""Matrix products whose result is wider than what goes in, without rounding on the way."""

from __future__ import annotations

from typing import Any

import torch


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    onto: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    in_place: bool = False,
) -> torch.Tensor:
    """a · b, added to `onto`; in its precision or in `dtype`, to which a GPU does not round on the way."""
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


def wide_product(hidden: torch.Tensor, weight_VC: torch.Tensor) -> torch.Tensor:
    """hidden · weightᵀ, in float32 at least."""
    if hidden.is_cuda and hidden.dtype.itemsize == 2:
        return _WideProduct.apply(hidden, weight_VC)
    product = torch.nn.functional.linear(hidden, weight_VC)
    return product if product.dtype == torch.float64 else product.float()


class _WideProduct(torch.autograd.Function):
    """16 bits in, float32 out: rounding a logit of 20 to bfloat16 would move its log-probability by up to 0.06."""

    @staticmethod
    def forward(ctx: Any, hidden_AC: torch.Tensor, weight_VC: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden_AC, weight_VC)
        return torch.mm(hidden_AC, weight_VC.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad_AV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden_AC, weight_VC = ctx.saved_tensors
        grad_AV = grad_AV.to(hidden_AC.dtype)
        # Under adapters the output layer is frozen: its gradient would be a third of its work, for nothing.
        return grad_AV @ weight_VC, grad_AV.t() @ hidden_AC if ctx.needs_input_grad[1] else None
