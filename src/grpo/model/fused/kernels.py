"""Triton kernels between the matrix products of training: norms, gate, rotation, joined attention, output layer.

Each makes one pass over memory where autograd makes several, and computes in float32. Axis letters in addition to
types.py: C width of the residual, I of the feed-forward layer, E of queries, keys and values concatenated, H query
heads, K key heads, D head width, R rows of logits. `tests/model/test_fused.py` compares every kernel with a float64
reference, on a CPU through Triton's interpreter. `do_not_specialize` marks numbers that differ between batches, so that
kernels are not recompiled for each value. Rows are 64-bit numbers: 65,536 rows of 37,888 columns have more than 2³¹
elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PROGRAMS = 1056
"""Number of programs, eight per processor of an H200; each accumulates a partial gradient of the norm's weight."""


@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, scale_ptr, eps, PER, STRIDE, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = (row // PER) * STRIDE + (row % PER) * C
    column = tl.arange(0, BLOCK)
    inside = column < C
    x = tl.load(x_ptr + place + column, inside, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / C + eps)
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + place + column, (x * scale * weight).to(out_ptr.dtype.element_ty), inside)
    tl.store(scale_ptr + row, scale)


def norm(
    x_TC: torch.Tensor, weight_C: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(RMS norm of every row, the row's scale)."""
    T, C = x_TC.shape
    out_TC, scale_T = x_TC.new_empty(T, C, dtype=dtype), x_TC.new_empty(T, dtype=torch.float32)
    _norm[(T,)](x_TC, weight_C, out_TC, scale_T, eps, 1, C, C=C, BLOCK=triton.next_power_of_2(C), num_warps=_warps(C))
    return out_TC, scale_T


def norm_heads(
    x_TE: torch.Tensor, weight_D: torch.Tensor, eps: float, heads: int, out_TE: torch.Tensor
) -> torch.Tensor:
    """Writes the norm of the first `heads` heads of every row to `out_TE`. Returns the scales [T · heads]."""
    (T, _), D = x_TE.shape, len(weight_D)
    scale = x_TE.new_empty(T * heads, dtype=torch.float32)
    _norm[(T * heads,)](
        x_TE, weight_D, out_TE, scale, eps, heads, x_TE.stride(0), C=D, BLOCK=triton.next_power_of_2(D), num_warps=1
    )
    return scale


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(
    grad_ptr, x_ptr, scale_ptr, weight_ptr, sum_ptr, narrow_ptr, out_ptr, weight_grad_ptr, rows, PER, STRIDE,
    GRAD_STRIDE, C: tl.constexpr, BLOCK: tl.constexpr, ONTO: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < C
    weight = tl.load(weight_ptr + column, inside, 0.0).to(tl.float32)
    weight_grad = tl.zeros([BLOCK], tl.float32)
    row = program.to(tl.int64)
    for _ in range(program, rows, tl.num_programs(0)):
        place = (row // PER) * STRIDE + (row % PER) * C
        grad_place = (row // PER) * GRAD_STRIDE + (row % PER) * C
        scale = tl.load(scale_ptr + row)
        normal = tl.load(x_ptr + place + column, inside, 0.0).to(tl.float32) * scale
        grad = tl.load(grad_ptr + grad_place + column, inside, 0.0).to(tl.float32)
        weight_grad += grad * normal
        grad = grad * weight
        grad = (grad - normal * (tl.sum(grad * normal) / C)) * scale
        if ONTO:
            grad += tl.load(sum_ptr + place + column, inside, 0.0)
            tl.store(sum_ptr + place + column, grad, inside)
            tl.store(out_ptr + place + column, (normal * weight).to(out_ptr.dtype.element_ty), inside)
        tl.store(narrow_ptr + grad_place + column, grad.to(narrow_ptr.dtype.element_ty), inside)
        row += tl.num_programs(0)
    tl.store(weight_grad_ptr + program * C + column, weight_grad, inside)


def norm_backward(
    grad_TC: torch.Tensor, x_TC: torch.Tensor, scale_T: torch.Tensor, weight_C: torch.Tensor, sum_TC: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Adds the gradient of a norm's input to `sum_TC`, in place. Returns (the sum rounded, the norm's output again, the
    weight's gradient)."""
    T, C = x_TC.shape
    narrow_TC, out_TC, programs = torch.empty_like(grad_TC), torch.empty_like(grad_TC), min(T, PROGRAMS)
    parts = x_TC.new_empty(programs, C, dtype=torch.float32)
    _norm_backward[(programs,)](
        grad_TC, x_TC, scale_T, weight_C, sum_TC, narrow_TC, out_TC, parts, T, 1, C, C,
        C=C, BLOCK=triton.next_power_of_2(C), ONTO=True, num_warps=_warps(C),
    )  # fmt: skip
    return narrow_TC, out_TC, parts.sum(dim=0)


def norm_heads_backward(
    grad_TE: torch.Tensor, x_TE: torch.Tensor, scale: torch.Tensor, weight_D: torch.Tensor, heads: int
) -> torch.Tensor:
    """Replaces the gradient of `norm_heads`' output by that of its input, in place. Returns the weight's gradient."""
    rows, D = len(x_TE) * heads, len(weight_D)
    programs = min(rows, PROGRAMS)
    parts = x_TE.new_empty(programs, D, dtype=torch.float32)
    _norm_backward[(programs,)](
        grad_TE, x_TE, scale, weight_D, grad_TE, grad_TE, grad_TE, parts, rows, heads, x_TE.stride(0),
        grad_TE.stride(0), C=D, BLOCK=triton.next_power_of_2(D), ONTO=False, num_warps=1,
    )  # fmt: skip
    return parts.sum(dim=0)


def _warps(columns: int) -> int:
    return 4 if columns <= 2048 else 8


@triton.jit
def _gated(gate_up_ptr, out_ptr, WIDTH, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up_ptr + row * 2 * WIDTH + column, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * WIDTH + WIDTH + column, inside, 0.0).to(tl.float32)
    silu = gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + row * WIDTH + column, (silu * up).to(out_ptr.dtype.element_ty), inside)


def gated(gate_up_TJ: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up; `gate_up_TJ` is both, concatenated."""
    T, width = gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2
    out_TI = gate_up_TJ.new_empty(T, width)
    _gated[(T, triton.cdiv(width, 1024))](gate_up_TJ, out_TI, width, BLOCK=1024, num_warps=4)
    return out_TI


@triton.jit
def _gate_backward(grad_ptr, gate_up_ptr, both_ptr, gated_ptr, WIDTH, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * 2 * WIDTH + column
    gate = tl.load(gate_up_ptr + place, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + place + WIDTH, inside, 0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * WIDTH + column, inside, 0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    silu = gate * sigmoid
    kept = both_ptr.dtype.element_ty
    tl.store(both_ptr + place, (grad * up * (sigmoid + silu * (1.0 - sigmoid))).to(kept), inside)
    tl.store(both_ptr + place + WIDTH, (grad * silu).to(kept), inside)
    tl.store(gated_ptr + row * WIDTH + column, (silu * up).to(kept), inside)


def gate_backward(grad_TI: torch.Tensor, gate_up_TJ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of gate and up concatenated, silu(gate) · up recomputed)."""
    T, width = grad_TI.shape
    both_TJ, gated_TI = torch.empty_like(gate_up_TJ), torch.empty_like(grad_TI)
    _gate_backward[(T, triton.cdiv(width, 1024))](grad_TI, gate_up_TJ, both_TJ, gated_TI, width, BLOCK=1024)
    return both_TJ, gated_TI


@triton.jit(do_not_specialize_on_alignment=["position_ptr"])
def _rotate(
    qkv_ptr, bias_ptr, out_ptr, cos_ptr, sin_ptr, position_ptr,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + row)
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < H + 2 * K) & (column < D // 2)
    place, first = head * D + column, row * (H + 2 * K) * D
    low = tl.load(qkv_ptr + first + place, inside, 0.0).to(tl.float32)
    high = tl.load(qkv_ptr + first + place + D // 2, inside, 0.0).to(tl.float32)
    if BIAS:
        low += tl.load(bias_ptr + place, inside, 0.0).to(tl.float32)
        high += tl.load(bias_ptr + place + D // 2, inside, 0.0).to(tl.float32)
    turns = inside & (head < H + K)
    cos = tl.load(cos_ptr + position * (D // 2) + column + head * 0, turns, 1.0).to(tl.float32)
    sin = tl.load(sin_ptr + position * (D // 2) + column + head * 0, turns, 0.0).to(tl.float32)
    kept = out_ptr.dtype.element_ty
    tl.store(out_ptr + first + place, (low * cos - high * sin).to(kept), inside)
    tl.store(out_ptr + first + place + D // 2, (high * cos + low * sin).to(kept), inside)


def rotate(
    qkv_TE: torch.Tensor,
    bias_E: torch.Tensor | None,
    rotation: tuple[torch.Tensor, torch.Tensor],
    positions_T: torch.Tensor,
    heads: int,
    key_heads: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Queries and keys with their bias and rotary embedding, and values with their bias; rounded once, to `dtype`."""
    T, E = qkv_TE.shape
    D, out_TE = E // (heads + 2 * key_heads), torch.empty_like(qkv_TE, dtype=dtype)
    _rotate[(T,)](
        qkv_TE, qkv_TE if bias_E is None else bias_E, out_TE, *rotation, positions_T, H=heads, K=key_heads, D=D,
        HEADS=triton.next_power_of_2(heads + 2 * key_heads), HALF=triton.next_power_of_2(D // 2),
        BIAS=bias_E is not None, num_warps=4,
    )  # fmt: skip
    return out_TE


@triton.jit(do_not_specialize=["prompt_tokens"], do_not_specialize_on_alignment=["position_ptr"])
def _rotate_back(
    q_ptr, k_ptr, v_ptr, q_more_ptr, k_more_ptr, v_more_ptr, out_ptr, cos_ptr, sin_ptr, position_ptr, prompt_tokens,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + row)
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    in_half = column < D // 2
    is_q = (head < H) & in_half
    is_k, is_v = (head >= H) & (head < H + K) & in_half, (head >= H + K) & (head < H + 2 * K) & in_half
    q, k, v = (
        row * H * D + head * D + column,
        row * K * D + (head - H) * D + column,
        row * K * D + (head - H - K) * D + column,
    )
    low = tl.load(q_ptr + q, is_q, 0.0).to(tl.float32) + tl.load(k_ptr + k, is_k, 0.0).to(tl.float32)
    low += tl.load(v_ptr + v, is_v, 0.0).to(tl.float32)
    high = tl.load(q_ptr + q + D // 2, is_q, 0.0).to(tl.float32) + tl.load(k_ptr + k + D // 2, is_k, 0.0).to(tl.float32)
    high += tl.load(v_ptr + v + D // 2, is_v, 0.0).to(tl.float32)
    if MORE:
        # Second attention call: completions' queries, and prompts' keys and values.
        in_prompt = head * 0 + row < prompt_tokens
        q, is_q = (row - prompt_tokens) * H * D + head * D + column, is_q & ~in_prompt
        is_k, is_v = is_k & in_prompt, is_v & in_prompt
        low += tl.load(q_more_ptr + q, is_q, 0.0).to(tl.float32) + tl.load(k_more_ptr + k, is_k, 0.0).to(tl.float32)
        low += tl.load(v_more_ptr + v, is_v, 0.0).to(tl.float32)
        high += tl.load(q_more_ptr + q + D // 2, is_q, 0.0).to(tl.float32)
        high += tl.load(k_more_ptr + k + D // 2, is_k, 0.0).to(tl.float32)
        high += tl.load(v_more_ptr + v + D // 2, is_v, 0.0).to(tl.float32)
    turns = in_half & (head < H + K)
    cos = tl.load(cos_ptr + position * (D // 2) + column + head * 0, turns, 1.0).to(tl.float32)
    sin = tl.load(sin_ptr + position * (D // 2) + column + head * 0, turns, 0.0).to(tl.float32)
    place = out_ptr + row * (H + 2 * K) * D + head * D + column
    inside = (head < H + 2 * K) & in_half
    kept = out_ptr.dtype.element_ty
    tl.store(place, (low * cos + high * sin).to(kept), inside)
    tl.store(place + D // 2, (high * cos - low * sin).to(kept), inside)


def rotate_back(
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    more: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    rotation: tuple[torch.Tensor, torch.Tensor],
    positions_T: torch.Tensor,
) -> torch.Tensor:
    """Gradient before rotation, [T, E], of gradients of rotated queries, keys and values, [T, heads, D] each.

    `more`: gradients from the second attention call, of completions' queries and prompts' keys and values; added.
    """
    (T, H, D), K = grads[0].shape, grads[1].shape[1]
    out_TE = grads[0].new_empty(T, (H + 2 * K) * D)
    prompt_tokens = len(more[1]) if more else 0
    _rotate_back[(T,)](
        *grads, *(more or grads), out_TE, *rotation, positions_T, prompt_tokens, H=H, K=K, D=D,
        HEADS=triton.next_power_of_2(H + 2 * K), HALF=triton.next_power_of_2(D // 2), MORE=more is not None,
        num_warps=4,
    )  # fmt: skip
    return out_TE


@triton.jit(do_not_specialize=["rows", "more_rows", "first"])
def _join(
    out_ptr, lse_ptr, more_ptr, more_lse_ptr, rows, more_rows, first,
    H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    is_head = head < H
    inside = is_head[:, None] & (column < D)[None, :]
    own = tl.load(lse_ptr + head * rows + first + row, is_head, 0.0)
    other = tl.load(more_lse_ptr + head * more_rows + row, is_head, 0.0)
    top = tl.maximum(own, other)
    both = top + tl.log(tl.exp(own - top) + tl.exp(other - top))
    place = head[:, None] * D + column[None, :]
    out = tl.load(out_ptr + (first + row) * H * D + place, inside, 0.0)
    more = tl.load(more_ptr + row * H * D + place, inside, 0.0)
    joined = out.to(tl.float32) * tl.exp(own - both)[:, None] + more.to(tl.float32) * tl.exp(other - both)[:, None]
    tl.store(out_ptr + (first + row) * H * D + place, joined.to(out.dtype), inside)
    tl.store(lse_ptr + head * rows + first + row, both, is_head)


def join(out_THD: torch.Tensor, lse_HT: torch.Tensor, more_UHD: torch.Tensor, more_lse_HU: torch.Tensor) -> None:
    """Joins attention of the last U rows to two sets of keys, in place; `lse`: log-sum-exp of the scores."""
    (T, H, D), U = out_THD.shape, len(more_UHD)
    _join[(U,)](
        out_THD, lse_HT, more_UHD, more_lse_HU, T, U, T - U,
        H=H, D=D, HEADS=triton.next_power_of_2(H), WIDTH=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["target_ptr", "logp_ptr", "entropy_ptr", "lse_ptr"])
def _token_logprobs(
    logits_ptr, target_ptr, logp_ptr, entropy_ptr, lse_ptr, inverse_temperature, V, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass, mean = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logit = tl.load(logits_ptr + row * V + column, column < V, float("-inf")) * inverse_temperature
        new_top = tl.maximum(top, logit)
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        keep, weight = tl.exp(top - safe), tl.exp(logit - safe)
        mass = mass * keep + weight
        mean = mean * keep + weight * tl.where(weight > 0, logit, 0.0)
        top = new_top
    highest = tl.max(top, axis=0)
    keep = tl.exp(top - highest)
    total = tl.sum(mass * keep, axis=0)
    lse = highest + tl.log(total)
    target = tl.load(target_ptr + row)
    tl.store(logp_ptr + row, tl.load(logits_ptr + row * V + target) * inverse_temperature - lse)
    tl.store(entropy_ptr + row, lse - tl.sum(mean * keep, axis=0) / total)
    tl.store(lse_ptr + row, lse)


def token_logprobs(
    logits_RV: torch.Tensor, target_R: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log-probability of each row's target, entropy, log-sum-exp), all [R]."""
    (R, V) = logits_RV.shape
    logp_R, entropy_R, lse_R = (logits_RV.new_empty(R) for _ in range(3))
    _token_logprobs[(R,)](logits_RV, target_R, logp_R, entropy_R, lse_R, 1 / temperature, V, BLOCK=4096, num_warps=8)
    return logp_R, entropy_R, lse_R


@triton.jit(
    do_not_specialize_on_alignment=["target_ptr", "lse_ptr", "entropy_ptr", "logp_grad_ptr", "entropy_grad_ptr"]
)
def _token_logprobs_backward(
    logits_ptr, target_ptr, lse_ptr, entropy_ptr, logp_grad_ptr, entropy_grad_ptr, out_ptr, inverse_temperature, V,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    logp = tl.load(logits_ptr + row * V + column, inside, float("-inf")) * inverse_temperature - tl.load(lse_ptr + row)
    probability = tl.exp(logp)
    grad, entropy_grad = tl.load(logp_grad_ptr + row), tl.load(entropy_grad_ptr + row)
    of_entropy = probability * tl.where(probability > 0, logp + tl.load(entropy_ptr + row), 0.0)
    is_target = tl.where(column == tl.load(target_ptr + row), 1.0, 0.0)
    found = (grad * (is_target - probability) - entropy_grad * of_entropy) * inverse_temperature
    tl.store(out_ptr + row * V + column, found.to(out_ptr.dtype.element_ty), inside)


def token_logprobs_backward(
    logits_RV: torch.Tensor,
    target_R: torch.Tensor,
    lse_R: torch.Tensor,
    entropy_R: torch.Tensor,
    logp_grad_R: torch.Tensor,
    entropy_grad_R: torch.Tensor,
    temperature: float,
    out_RV: torch.Tensor,
) -> None:
    """Writes the gradient of the logits to `out_RV`, rounded to its precision."""
    R, V = logits_RV.shape
    _token_logprobs_backward[(R, triton.cdiv(V, 4096))](
        logits_RV, target_R, lse_R, entropy_R, logp_grad_R, entropy_grad_R, out_RV, 1 / temperature, V, BLOCK=4096,
        num_warps=8,
    )  # fmt: skip
