"""Attention of packed groups, a prompt computed once for all its completions: forward and backward.

Two calls of a kernel for rows of unequal length serve a whole micro-batch: every prompt and every completion sees
itself, causally; and all completions of a group, one long row of queries, see their prompt. A softmax over both sets of
keys is the two results, each weighed by its share of the sum. The backward pass of each call takes the joined result
and the joined sum, which gives it the probabilities of the whole.
"""

from __future__ import annotations

import torch

from grpo.model.fused import kernels
from grpo.model.fused.segments import Rows, Segments

Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attend(
    qkv_TE: torch.Tensor, segments: Segments, heads: int, key_heads: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixed values [T, H, D], logarithms of the softmax's sums [H, T])."""
    q, k, v = _heads(qkv_TE, heads, key_heads)
    out_THD, lse_HT = _forward(q, k, v, segments.every, scale)
    if segments.groups:
        first = segments.prompt_tokens
        kernels.join(out_THD, lse_HT, *_forward(q[first:], k[:first], v[:first], segments.groups, scale))
    return out_THD, lse_HT


def attend_backward(
    grad_THD: torch.Tensor,
    qkv_TE: torch.Tensor,
    out_THD: torch.Tensor,
    lse_HT: torch.Tensor,
    segments: Segments,
    heads: int,
    key_heads: int,
    scale: float,
) -> tuple[Grads, Grads | None]:
    """Gradients of queries, keys, values; and what completions' queries, prompts' keys and values have besides."""
    q, k, v = _heads(qkv_TE, heads, key_heads)
    own = _backward(grad_THD, q, k, v, out_THD, lse_HT, segments.every, scale)
    if not segments.groups:
        return own, None
    first = segments.prompt_tokens
    more = _backward(
        grad_THD[first:], q[first:], k[:first], v[:first], out_THD[first:], lse_HT[:, first:].contiguous(),
        segments.groups, scale,
    )  # fmt: skip
    return own, more


def _heads(qkv_TE: torch.Tensor, heads: int, key_heads: int) -> Grads:
    every = qkv_TE.view(len(qkv_TE), heads + 2 * key_heads, -1)
    q, k, v = every.split([heads, key_heads, key_heads], dim=1)
    return q, k, v


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not q.is_cuda:
        return _plain_forward(q, k, v, rows, scale)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, rows.queries, rows.keys, rows.longest_queries, rows.longest_keys, 0.0, rows.causal, False, scale=scale
    )
    return out, lse


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    rows: Rows,
    scale: float,
) -> Grads:
    if not q.is_cuda:
        return _plain_backward(grad, q, k, v, out, lse, rows, scale)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, rows.queries, rows.keys, rows.longest_queries, rows.longest_keys, 0.0, rows.causal,
        no_dropout, no_dropout, scale=scale,
    )  # fmt: skip


# The same on a CPU, row by row in plain arithmetic: what the kernel is held to.


def _weights(q_LHD: torch.Tensor, k_SHD: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    score_HLS = torch.einsum("lhd,shd->hls", q_LHD, k_SHD) * scale
    return score_HLS.masked_fill(torch.ones_like(score_HLS[0]).triu(1).bool(), -torch.inf) if causal else score_HLS


def _plain_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    shared = q.shape[1] // k.shape[1]
    outs, sums = [], []
    for queries, keys in rows:
        score_HLS = _weights(q[queries], k[keys].repeat_interleave(shared, 1), scale, rows.causal)
        sums.append(score_HLS.logsumexp(-1))
        outs.append(torch.einsum("hls,shd->lhd", score_HLS.softmax(-1), v[keys].repeat_interleave(shared, 1)))
    return torch.cat(outs), torch.cat(sums, dim=1)


def _plain_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    rows: Rows,
    scale: float,
) -> Grads:
    shared = q.shape[1] // k.shape[1]
    q_grad, k_grad, v_grad = (
        torch.empty_like(q.contiguous()),
        torch.empty_like(k.contiguous()),
        torch.empty_like(v.contiguous()),
    )
    for queries, keys in rows:
        wide_k, wide_v = (x[keys].repeat_interleave(shared, 1) for x in (k, v))
        weight_HLS = (_weights(q[queries], wide_k, scale, rows.causal) - lse[:, queries, None]).exp()
        of_weight_HLS = torch.einsum("lhd,shd->hls", grad[queries], wide_v)
        mean_HL1 = (grad[queries] * out[queries]).sum(-1).t()[..., None]
        of_score_HLS = weight_HLS * (of_weight_HLS - mean_HL1) * scale
        q_grad[queries] = torch.einsum("hls,shd->lhd", of_score_HLS, wide_k)
        k_wide = torch.einsum("hls,lhd->shd", of_score_HLS, q[queries])
        v_wide = torch.einsum("hls,lhd->shd", weight_HLS, grad[queries])
        k_grad[keys] = k_wide.unflatten(1, (-1, shared)).sum(2)
        v_grad[keys] = v_wide.unflatten(1, (-1, shared)).sum(2)
    return q_grad, k_grad, v_grad
