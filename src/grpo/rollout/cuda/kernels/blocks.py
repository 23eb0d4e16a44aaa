"""Attention of some queries to some keys and values of one block: a step of every attention kernel.

Scores are multiplied by `scale` · log₂ e and weights are powers of two, which saves a multiplication for each. So the
greatest scores that kernels exchange (`join.py`) are in units of log₂.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from grpo.rollout.schedule import BLOCK_TOKENS

PROGRAMS = 512
"""Programs that fill a GPU's memory bandwidth, about four for each multiprocessor of an H200. Of programs that read
whole blocks of heads of 128 numbers, hardly more run at a time: 640 would run in two rounds, the second mostly idle."""
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Greatest score of a query that has seen no key yet: a number, so that it can be subtracted."""


@triton.jit
def attend_to_keys(
    q, top, mass, out, k_ptr, v_ptr, keys, oldest, column, scale,
    D: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the first `keys` of KEYS keys and values, from `k_ptr` and `v_ptr` on, to the attention of the queries.

    `top`, `mass` and `out` of each query: its greatest score, the sum of its weights, and the weighted sum of values.
    `oldest`: the first of these keys that each query sees, with a WINDOW only; negative where it sees all. `keys` may
    exceed KEYS. `scale` is positive.
    """
    key = tl.arange(0, KEYS)
    place = key[:, None] * D + column[None, :]
    exists, in_head = (key < keys)[:, None], (column < D)[None, :]
    # Keys beyond are read and not seen. Values beyond are not read: 0 · infinity is not a number.
    if q.shape[1] == D:
        k, v = tl.load(k_ptr + place), tl.load(v_ptr + place, exists, 0.0)
    else:
        k, v = tl.load(k_ptr + place, in_head, 0.0), tl.load(v_ptr + place, exists & in_head, 0.0)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION).to(tl.float32)
    seen = (key < keys)[None, :]
    if WINDOW:
        seen = seen & (key[None, :] >= oldest[:, None])
    score = tl.where(seen, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, axis=1) * (scale * LOG2_E))
    weight = tl.exp2(score * (scale * LOG2_E) - new_top[:, None])
    keep = tl.exp2(top - new_top)
    mass = mass * keep + tl.sum(weight, axis=1)
    out = tl.dot(weight.to(v.dtype), v, out * keep[:, None], input_precision=PRECISION)
    return new_top, mass, out


def step_of(programs: int, q: torch.Tensor, width: int) -> dict[str, int]:
    """Keys that a program reads in one step, and its warps. Above `PROGRAMS` programs the keys are half as many, and so
    are the warps of 16-bit heads wider than 64, so that more programs run at a time."""
    large, columns = programs <= PROGRAMS, triton.next_power_of_2(width)
    warps = 4 if q.element_size() == 4 else max(1, columns // (64 if large else 128))
    return {"KEYS": BLOCK_TOKENS if large else BLOCK_TOKENS // 2, "num_warps": warps}
