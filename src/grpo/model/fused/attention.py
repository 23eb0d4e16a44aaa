"""Attention of packed groups, forward and backward. Each prompt is computed once for all its completions.

Two calls of flash attention serve a whole micro-batch. In the first, every prompt and every completion attends to
itself, causally. In the second, the completions of a group, as one long query sequence, attend to their prompt. The
softmax over both sets of keys is the two results, each weighted by its share of the sum of exponentials. The backward
pass of each call is given the joined result and the joined sum, so that its probabilities are those of the whole. For
long completions the second is cut into parts (`segments.Parts`).
"""

from __future__ import annotations

import torch

from grpo.model.fused import kernels
from grpo.model.fused.segments import Segments, SequenceBounds

Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attend(
    qkv_TE: torch.Tensor, segments: Segments, heads: int, key_heads: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(attention output [T, H, D], log-sum-exp of the scores [H, T])."""
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
    """(gradients of queries, keys and values from the first call; from the second: of the completions' queries and the
    prompts' keys and values)."""
    q, k, v = _heads(qkv_TE, heads, key_heads)
    own = _backward(grad_THD, q, k, v, out_THD, lse_HT, segments.every, scale)
    if not segments.groups:
        return own, None
    first, parts, bounds = segments.prompt_tokens, segments.parts, segments.groups
    prompt_k, prompt_v = k[:first], v[:first]
    if parts:
        prompt_k, prompt_v, bounds = parts.copied(prompt_k), parts.copied(prompt_v), parts.bounds
    q_grad, k_grad, v_grad = _backward(
        grad_THD[first:], q[first:], prompt_k, prompt_v, out_THD[first:], lse_HT[:, first:].contiguous(), bounds, scale
    )
    return own, (q_grad, parts.summed(k_grad), parts.summed(v_grad)) if parts else (q_grad, k_grad, v_grad)


def _heads(qkv_TE: torch.Tensor, heads: int, key_heads: int) -> Grads:
    every = qkv_TE.view(len(qkv_TE), heads + 2 * key_heads, -1)
    q, k, v = every.split([heads, key_heads, key_heads], dim=1)
    return q, k, v


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not q.is_cuda:
        return _plain_forward(q, k, v, bounds, scale)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        bounds.queries,
        bounds.keys,
        bounds.longest_queries,
        bounds.longest_keys,
        0.0,
        bounds.causal,
        False,
        scale=scale,
    )
    return out, lse


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    bounds: SequenceBounds,
    scale: float,
) -> Grads:
    if not q.is_cuda:
        return _plain_backward(grad, q, k, v, out, lse, bounds, scale)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, bounds.queries, bounds.keys, bounds.longest_queries, bounds.longest_keys, 0.0,
        bounds.causal, no_dropout, no_dropout, scale=scale,
    )  # fmt: skip


# The same in plain torch, sequence by sequence, in float32 or wider: for tests without a GPU.


def _widened(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]


def _weights(q_LHD: torch.Tensor, k_SHD: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    score_HLS = torch.einsum("lhd,shd->hls", q_LHD, k_SHD) * scale
    return score_HLS.masked_fill(torch.ones_like(score_HLS[0]).triu(1).bool(), -torch.inf) if causal else score_HLS


def _plain_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    shared, dtype = q.shape[1] // k.shape[1], q.dtype
    q, k, v = _widened(q, k, v)
    outs, sums = [], []
    for queries, keys in bounds:
        score_HLS = _weights(q[queries], k[keys].repeat_interleave(shared, 1), scale, bounds.causal)
        sums.append(score_HLS.logsumexp(-1))
        outs.append(torch.einsum("hls,shd->lhd", score_HLS.softmax(-1), v[keys].repeat_interleave(shared, 1)))
    return torch.cat(outs).to(dtype), torch.cat(sums, dim=1)


def _plain_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    bounds: SequenceBounds,
    scale: float,
) -> Grads:
    shared = q.shape[1] // k.shape[1]
    q_grad, k_grad, v_grad = (
        torch.empty_like(q.contiguous()),
        torch.empty_like(k.contiguous()),
        torch.empty_like(v.contiguous()),
    )
    grad, q, k, v, out = _widened(grad, q, k, v, out)
    for queries, keys in bounds:
        wide_k, wide_v = (x[keys].repeat_interleave(shared, 1) for x in (k, v))
        weight_HLS = (_weights(q[queries], wide_k, scale, bounds.causal) - lse[:, queries, None]).exp()
        of_weight_HLS = torch.einsum("lhd,shd->hls", grad[queries], wide_v)
        mean_HL1 = (grad[queries] * out[queries]).sum(-1).t()[..., None]
        of_score_HLS = weight_HLS * (of_weight_HLS - mean_HL1) * scale
        q_grad[queries] = torch.einsum("hls,shd->lhd", of_score_HLS, wide_k)
        k_wide = torch.einsum("hls,lhd->shd", of_score_HLS, q[queries])
        v_wide = torch.einsum("hls,lhd->shd", weight_HLS, grad[queries])
        k_grad[keys] = k_wide.unflatten(1, (-1, shared)).sum(2)
        v_grad[keys] = v_wide.unflatten(1, (-1, shared)).sum(2)
    return q_grad, k_grad, v_grad
