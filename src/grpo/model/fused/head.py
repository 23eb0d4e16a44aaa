"""The output layer: log-probabilities of given tokens, and entropies, without all logits in memory.

Logits are computed a chunk of tokens at a time, and again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo.model.fused import kernels
from grpo.model.matmul import matmul

LOGITS_AT_ONCE = 2**26
"""Most logits in memory at a time, while a chunk has `FEWEST_ROWS` rows or more: 256 MiB in float32, and half of that
for their gradient."""
FEWEST_ROWS = 1024
"""Fewest rows of a chunk, for large vocabularies: every chunk adds to the whole gradient of the weight."""


def token_logprobs(
    hidden_AC: torch.Tensor, head_VC: torch.Tensor, weight_VC: torch.Tensor, target_A: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probability of each target, entropy), [A]. `head_VC` is the working copy; `weight_VC` gets the gradient."""
    return _Head.apply(hidden_AC, head_VC, weight_VC, target_A, temperature)


def rows_at_once(vocabulary: int) -> int:
    return max(FEWEST_ROWS, LOGITS_AT_ONCE // vocabulary)


class _Head(torch.autograd.Function):
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
        grad_AC, weight_VC = torch.empty_like(hidden_AC), ctx.weight_VC
        rows = rows_at_once(len(head_VC))
        parts = (x.split(rows) for x in (hidden_AC, target_A, lse_A, entropy_A, logp_grad_A, entropy_grad_A, grad_AC))
        for hidden, target, lse, entropy, logp_grad, entropy_grad, grad in zip(*parts, strict=True):
            logits = matmul(hidden, head_VC.t(), dtype=torch.float32)
            grad_RV = kernels.token_logprobs_backward(
                logits, target, lse, entropy, logp_grad, entropy_grad, ctx.temperature, head_VC.dtype
            )
            del logits
            torch.mm(grad_RV, head_VC, out=grad)
            if weight_VC.requires_grad:
                if weight_VC.grad is None:
                    weight_VC.grad = matmul(grad_RV.t(), hidden, dtype=weight_VC.grad_dtype)
                else:
                    matmul(grad_RV.t(), hidden, onto=weight_VC.grad, in_place=True)
        return grad_AC, None, None, None, None
