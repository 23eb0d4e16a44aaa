"""The output layer: log-probabilities of given tokens, and entropies, without all logits in memory.

Logits are computed in float32, a chunk of tokens at a time. The forward pass keeps their gradient, in the precision of
computation; or the backward pass computes the logits again, which takes less memory and one matmul more.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo.model.fused import kernels
from grpo.model.matmul import matmul

LOGITS_AT_ONCE = 2**26
"""Most logits in memory at a time, while a chunk has `FEWEST_ROWS` rows or more: 256 MiB in float32."""
FEWEST_ROWS = 1024
"""Fewest rows of a chunk, for large vocabularies: every recomputed chunk adds to the whole gradient of the weight."""
KEPT_SCALE = 64.0
"""Factor of the kept gradient, for float16: probabilities down to 1e-9 do not become 0. In the backward pass the loss's
gradient is divided by it, and the quotient multiplies hidden states: without it their product could overflow. A power
of two: nothing is rounded."""


def token_logprobs(
    hidden_AC: torch.Tensor,
    head_VC: torch.Tensor,
    weight_VC: torch.Tensor,
    target_A: torch.Tensor,
    temperature: float,
    *,
    keep_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probability of each target, entropy), [A]. `head_VC` is the working copy; `weight_VC` gets the gradient.

    `keep_gradient`: keep the gradient of the logits, [A, V], from the forward pass; the entropy then has no gradient.
    """
    trained = torch.is_grad_enabled() and (hidden_AC.requires_grad or weight_VC.requires_grad)
    function = _KeptGradient if keep_gradient and trained else _RecomputedLogits
    return function.apply(hidden_AC, head_VC, weight_VC, target_A, temperature)


def rows_at_once(vocabulary: int) -> int:
    return max(FEWEST_ROWS, LOGITS_AT_ONCE // vocabulary)


class _KeptGradient(torch.autograd.Function):
    """Keeps (is target − probability) · `KEPT_SCALE`, the gradient of a log-probability by logits ÷ temperature.

    The loss's gradient with respect to a token's log-probability scales the token's row: in the backward pass a row of
    [A, C], not of [A, V].
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_AC: torch.Tensor,
        head_VC: torch.Tensor,
        weight_VC: torch.Tensor,
        target_A: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows_at_once(len(head_VC))
        grad_AV = hidden_AC.new_empty(len(hidden_AC), len(head_VC), dtype=head_VC.dtype)
        chunks = zip(hidden_AC.split(rows), target_A.split(rows), grad_AV.split(rows), strict=True)
        parts = [
            _logprobs_and_gradient(matmul(hidden, head_VC.t(), dtype=torch.float32), target, temperature, grad)
            for hidden, target, grad in chunks
        ]
        logp_A, entropy_A = (torch.cat(values) for values in zip(*parts, strict=True))
        ctx.weight_VC, ctx.temperature = weight_VC, temperature
        ctx.save_for_backward(hidden_AC, head_VC, grad_AV)
        ctx.mark_non_differentiable(entropy_A)
        return logp_A, entropy_A

    @staticmethod
    def backward(ctx: Any, logp_grad_A: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        hidden_AC, head_VC, grad_AV = ctx.saved_tensors
        factor_A1 = (logp_grad_A / (ctx.temperature * KEPT_SCALE))[:, None]
        # Scaled in float32, so that it is rounded once.
        grad_AC = matmul(grad_AV, head_VC, dtype=torch.float32).mul_(factor_A1).to(hidden_AC.dtype)
        if ctx.weight_VC.requires_grad:
            # `out`: without it the product would be a float32 tensor first.
            scaled_AC = torch.mul(hidden_AC, factor_A1, out=torch.empty_like(hidden_AC))
            _add_weight_gradient(ctx.weight_VC, grad_AV, scaled_AC)
        return grad_AC, None, None, None, None


class _RecomputedLogits(torch.autograd.Function):
    """Computes the logits again in the backward pass, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_AC: torch.Tensor,
        head_VC: torch.Tensor,
        weight_VC: torch.Tensor,
        target_A: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows_at_once(len(head_VC))
        parts = [
            kernels.token_logprobs(matmul(hidden, head_VC.t(), dtype=torch.float32), target, temperature)
            for hidden, target in zip(hidden_AC.split(rows), target_A.split(rows), strict=True)
        ]
        logp_A, entropy_A, lse_A = (torch.cat(values) for values in zip(*parts, strict=True))
        ctx.weight_VC, ctx.temperature = weight_VC, temperature
        ctx.save_for_backward(hidden_AC, head_VC, target_A, entropy_A, lse_A)
        return logp_A, entropy_A

    @staticmethod
    def backward(
        ctx: Any, logp_grad_A: torch.Tensor, entropy_grad_A: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None, None]:
        hidden_AC, head_VC, target_A, entropy_A, lse_A = ctx.saved_tensors
        # The gradient of a sum is one number expanded; the kernel reads one number per row.
        logp_grad_A, entropy_grad_A = logp_grad_A.contiguous(), entropy_grad_A.contiguous()
        rows = min(rows_at_once(len(head_VC)), len(hidden_AC))
        grad_AC, logits_grad_RV = torch.empty_like(hidden_AC), head_VC.new_empty(rows, len(head_VC))
        parts = (x.split(rows) for x in (hidden_AC, target_A, lse_A, entropy_A, logp_grad_A, entropy_grad_A, grad_AC))
        for hidden, target, lse, entropy, logp_grad, entropy_grad, grad in zip(*parts, strict=True):
            logits, grad_RV = matmul(hidden, head_VC.t(), dtype=torch.float32), logits_grad_RV[: len(hidden)]
            kernels.token_logprobs_backward(
                logits, target, lse, entropy, logp_grad, entropy_grad, ctx.temperature, grad_RV
            )
            del logits
            torch.mm(grad_RV, head_VC, out=grad)
            if ctx.weight_VC.requires_grad:
                _add_weight_gradient(ctx.weight_VC, grad_RV, hidden)
        return grad_AC, None, None, None, None


def _logprobs_and_gradient(
    logits_RV: torch.Tensor, target_R: torch.Tensor, temperature: float, out_RV: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probability of each row's target, entropy). Writes the gradient to keep to `out_RV`."""
    logp_R, entropy_R, lse_R = kernels.token_logprobs(logits_RV, target_R, temperature)
    scale_R, zeros_R = torch.full_like(lse_R, temperature * KEPT_SCALE), torch.zeros_like(lse_R)
    kernels.token_logprobs_backward(logits_RV, target_R, lse_R, entropy_R, scale_R, zeros_R, temperature, out_RV)
    return logp_R, entropy_R


def _add_weight_gradient(weight_VC: torch.Tensor, grad_RV: torch.Tensor, hidden_RC: torch.Tensor) -> None:
    if weight_VC.grad is None:
        weight_VC.grad = matmul(grad_RV.t(), hidden_RC, dtype=weight_VC.grad_dtype)
    else:
        matmul(grad_RV.t(), hidden_RC, onto=weight_VC.grad, in_place=True)
