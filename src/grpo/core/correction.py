"""Importance weights for a sampler whose probabilities differ from the trainer's (truncated importance sampling).

An engine in another precision, or with other kernels, samples from a slightly different policy. w = exp(old − sampler)
corrects for that; a cap bounds its variance.
"""

from __future__ import annotations

import torch


def sampler_correction(
    old_logp: torch.Tensor, sampler_logp: torch.Tensor, mask: torch.Tensor, kind: str, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight of each token, which weights exceeded `cap`), both [N, L].

    token: one weight per token; sequence: one per completion, the product over its tokens. A weight above `cap` is set
    to `cap`, or to 0 with token_mask and sequence_mask.

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
