"""The next token of every row, drawn from its logits."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOGITS_PER_PROGRAM = 4096

Scratch = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _weigh(logits_ptr, source_ptr, top_ptr, mass_ptr, cool_ptr, V, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    source = tl.load(source_ptr + row).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32)
    cool = tl.load(cool_ptr)
    logit *= tl.where(cool == 0, 1.0, cool)
    top = tl.max(logit)
    tl.store(top_ptr + row * parts + part, top)
    tl.store(mass_ptr + row * parts + part, tl.sum(tl.exp(logit - top)))


@triton.jit(do_not_specialize=["new_tokens"])
def _pick(
    logits_ptr, source_ptr, top_ptr, mass_ptr, noise_ptr, slot_ptr, going_ptr, token_ptr, tokens_ptr, logp_ptr,
    length_ptr, ends_ptr, time_ptr, cool_ptr, V, parts, new_tokens,
    ENDS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    time = tl.load(time_ptr)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    source = tl.load(source_ptr + row).to(tl.int64)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * parts + part, part < parts, float("-inf"))
    top = tl.max(tops)
    masses = tl.load(mass_ptr + row * parts + part, part < parts, 0.0) * tl.exp(tops - top)
    total = tl.sum(masses)
    # Inverse transform in two strides: the part in which the cumulative probability passes the noise, then the token.
    # Or the part, and then the token, with the greatest logit; the first of several.
    cool = tl.load(cool_ptr)
    greedy = cool == 0
    target = tl.load(noise_ptr + slot * new_tokens + time) * total
    last = tl.max(tl.where(masses > 0, part, 0))
    drawn_part = tl.minimum(tl.sum((tl.cumsum(masses, 0) <= target).to(tl.int32)), last)
    chosen_part = tl.where(greedy, tl.min(tl.where(tops == top, part, PARTS)), drawn_part)
    rest = target - tl.sum(tl.where(part < chosen_part, masses, 0.0))
    column = chosen_part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32)
    logit *= tl.where(greedy, 1.0, cool)
    weight = tl.exp(logit - top)
    last_token = tl.max(tl.where(weight > 0, column, 0))
    drawn = tl.minimum(chosen_part * BLOCK + tl.sum((tl.cumsum(weight, 0) <= rest).to(tl.int32)), last_token)
    token = tl.where(greedy, tl.min(tl.where(logit == top, column, V - 1)), drawn)
    logp = tl.sum(tl.where(column == token, logit, 0.0)) - top - tl.log(total)
    going = tl.load(going_ptr + row)
    ended = token < 0
    for i in tl.static_range(ENDS):
        ended = ended | (token == tl.load(ends_ptr + i))
    tl.store(token_ptr + row, token)
    if going:
        tl.store(tokens_ptr + slot * new_tokens + time, token)
        tl.store(logp_ptr + slot * new_tokens + time, logp)
        if ended:
            tl.store(length_ptr + slot, time + 1)
            tl.store(going_ptr + row, 0)


def sample_tokens(
    logits_UV: torch.Tensor,
    source_B: torch.Tensor,
    rows: Any,
    results: Any,
    cool: torch.Tensor,
    scratch: Scratch,
) -> None:
    """The next token of every row by inverse transform from its own noise, and its log-probability. Row b reads the
    logits at source_B[b]. Logits are read once and no copy of them is made. `cool`, 1 / temperature, is read on the
    GPU, so that one captured graph serves every temperature; 0 takes the likeliest token, weighed as at temperature 1.
    """
    weigh(logits_UV, source_B, cool, scratch)
    pick(logits_UV, source_B, rows, results, cool, scratch)


def weigh(logits_UV: torch.Tensor, source_B: torch.Tensor, cool: torch.Tensor, scratch: Scratch) -> None:
    """Into `scratch`: the greatest logit and the mass of each part of the vocabulary."""
    V = logits_UV.shape[1]
    parts = triton.cdiv(V, LOGITS_PER_PROGRAM)
    _weigh[(len(source_B), parts)](logits_UV, source_B, *scratch, cool, V, parts, BLOCK=LOGITS_PER_PROGRAM, num_warps=8)


def pick(
    logits_UV: torch.Tensor, source_B: torch.Tensor, rows: Any, results: Any, cool: torch.Tensor, scratch: Scratch
) -> None:
    """A token of each row, by what `weigh` left."""
    V = logits_UV.shape[1]
    parts = triton.cdiv(V, LOGITS_PER_PROGRAM)
    _pick[(len(source_B),)](
        logits_UV, source_B, *scratch, results.noise_SL, rows.slot_B, rows.going_B, rows.token_B,
        results.tokens_SL, results.logp_SL, results.length_S, results.ends, rows.time, cool,
        V, parts, results.tokens_SL.shape[1],
        ENDS=len(results.ends), PARTS=triton.next_power_of_2(parts), BLOCK=LOGITS_PER_PROGRAM, num_warps=8,
    )  # fmt: skip
