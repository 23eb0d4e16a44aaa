"""Samples the next token of each row by inverse transform, in plain torch."""

from __future__ import annotations

import math

import torch

from grpo.rollout.noise import given_tokens

CHUNK = 256
"""Tokens per chunk. Cumulative sums are computed for one chunk per row: over a whole vocabulary of 49,152 tokens they
would cost more than the probabilities."""
LEAST_CHUNK = 32
"""Smallest chunk. A vocabulary that does not divide into chunks of this size is one chunk."""


def sample_token(
    logits_NV: torch.Tensor,
    uniform_N: torch.Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row, from one uniform number each, and its log-probability. A negative number gives the
    token (see noise.py).

    >>> logits = torch.tensor([[0.1, 0.2, 0.7]]).log()
    >>> [sample_token(logits, torch.tensor([u]), temperature=1.0)[0].item() for u in (0.0, 0.15, 0.95)]
    [0, 1, 2]
    >>> token, logp = sample_token(logits, torch.tensor([-2.0]), temperature=1.0)
    >>> token.item(), round(logp.exp().item(), 3)
    (1, 0.2)
    """
    if temperature not in (0, 1):
        logits_NV = logits_NV / temperature
    prob_NV = torch.softmax(logits_NV, dim=-1)
    greatest_N = logits_NV.amax(dim=-1)
    # The greatest probability is 1 / sum exp(logit - greatest): it gives the normaliser without another pass.
    log_greatest_N = prob_NV.amax(dim=-1).log()
    greedy = temperature == 0
    token_N = logits_NV.argmax(dim=-1) if greedy else _inverse(_restrict(prob_NV, top_k, top_p, min_p), uniform_N)
    token_N = torch.where(uniform_N < 0, given_tokens(uniform_N), token_N)
    return token_N, logits_NV.gather(1, token_N[:, None])[:, 0] - greatest_N + log_greatest_N


def _inverse(weight_NV: torch.Tensor, uniform_N: torch.Tensor) -> torch.Tensor:
    """The token whose interval of the cumulative sum holds `uniform_N`: first its chunk, then the token in it."""
    N, V = weight_NV.shape
    width = math.gcd(V, CHUNK)
    weight_NKW = weight_NV.view(N, -1, width if width >= LEAST_CHUNK else V)
    ends_NK = weight_NKW.sum(dim=-1).cumsum(dim=-1)
    # The last cumulative sum is below 1 after rounding or top-k, top-p and min-p, so the target is scaled by it.
    target_N1 = uniform_N[:, None].to(ends_NK.dtype) * ends_NK[:, -1:]
    chunk_N1 = _first_beyond(ends_NK, target_N1)
    before_N1 = torch.where(chunk_N1 > 0, ends_NK.gather(1, (chunk_N1 - 1).clamp(min=0)), 0.0)
    running_NW = weight_NKW[torch.arange(N, device=weight_NV.device), chunk_N1[:, 0]].cumsum(dim=-1)
    place_N1 = _first_beyond(running_NW, target_N1 - before_N1)
    return (chunk_N1 * running_NW.shape[1] + place_N1)[:, 0]


def _first_beyond(running_NK: torch.Tensor, target_N1: torch.Tensor) -> torch.Tensor:
    """Index of the first sum beyond the target. Where rounding puts the target past the end: the last with a weight."""
    last_N1 = running_NK[:, -1:]
    below_N1 = torch.minimum(target_N1, torch.nextafter(last_N1, torch.zeros_like(last_N1)))
    return torch.searchsorted(running_NK, below_N1, right=True).clamp(max=running_NK.shape[1] - 1)


def _restrict(prob_NV: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Zeroes all but the `top_k` likeliest tokens, all outside the smallest set that holds `top_p` of the mass, and
    all below `min_p` times the greatest probability."""
    if min_p:
        prob_NV = torch.where(prob_NV < min_p * prob_NV.amax(dim=-1, keepdim=True), 0.0, prob_NV)
    if not top_k and top_p >= 1:
        return prob_NV
    sorted_NV, order_NV = prob_NV.sort(dim=-1, descending=True)
    keep_NV = (sorted_NV.cumsum(dim=-1) - sorted_NV) < top_p
    if top_k:
        keep_NV[:, top_k:] = False
    return torch.zeros_like(prob_NV).scatter(1, order_NV, sorted_NV * keep_NV)
