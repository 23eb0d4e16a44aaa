"""Importance weights for completions that came from a sampler other than the trainer's own policy.

Where an engine computes in another precision, or with kernels of its own, it samples from a slightly different policy.
w = exp(old − sampler) undoes that, and is bounded because its variance is not (truncated importance sampling).
"""

from __future__ import annotations

import torch


def sampler_correction(
    old_logp: torch.Tensor, sampler_logp: torch.Tensor, mask: torch.Tensor, kind: str, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight of each token [N, L], which tokens the cap reached).

    token: one weight each; sequence: that of the whole completion, the product over its tokens. Above `cap` a weight is
    cut to it; with token_mask and sequence_mask it is 0 instead, and what it weighs is left out.

    >>> old, sampler = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, -1.0]])
    >>> sampler_correction(old, sampler, old < 0, "token", 2.0)[0].tolist()             # e^1 is above 2
    [[2.0, 1.0]]
    >>> sampler_correction(old, sampler, old < 0, "sequence_mask", 2.0)[0].tolist()
    [[0.0, 0.0]]
    """
    scope, _, action = kind.partition("_")
    if scope not in ("token", "sequence") or action not in ("", "mask"):
        raise ValueError(f"unknown correction {kind!r}: token, token_mask, sequence or sequence_mask")
    log_weights_NL = (old_logp - sampler_logp).detach().masked_fill(~mask, 0.0)
    if scope == "sequence":
        log_weights_NL = log_weights_NL.sum(dim=1, keepdim=True).expand_as(log_weights_NL)
    weights_NL = log_weights_NL.clamp(max=80.0).exp()
    limited_NL = weights_NL > cap
    return weights_NL.masked_fill(limited_NL, 0.0 if action else cap), limited_NL
