"""Samples the next token of every row from its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from grpo.rollout.cuda.batch import DecodeBatch
    from grpo.rollout.cuda.sampler import Results

LOGITS_PER_PROGRAM = 4096

Scratch = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _weigh(logits_ptr, source_ptr, top_ptr, mass_ptr, inverse_temperature_ptr, V, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    source = tl.load(source_ptr + row).to(tl.int64)
    column = part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32)
    inverse_temperature = tl.load(inverse_temperature_ptr)
    logit *= tl.where(inverse_temperature == 0, 1.0, inverse_temperature)
    top = tl.max(logit)
    tl.store(top_ptr + row * parts + part, top)
    tl.store(mass_ptr + row * parts + part, tl.sum(tl.exp(logit - top)))


@triton.jit(do_not_specialize=["new_tokens"])
def _pick(
    logits_ptr, source_ptr, top_ptr, mass_ptr, noise_ptr, owner_ptr, active_ptr, token_ptr, time_ptr, tokens_ptr,
    logp_ptr, length_ptr, limit_ptr, ends_ptr, inverse_temperature_ptr, V, parts, new_tokens,
    ENDS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    time = tl.load(time_ptr + row)
    owner = tl.load(owner_ptr + row).to(tl.int64)
    source = tl.load(source_ptr + row).to(tl.int64)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * parts + part, part < parts, float("-inf"))
    top = tl.max(tops)
    masses = tl.load(mass_ptr + row * parts + part, part < parts, 0.0) * tl.exp(tops - top)
    total = tl.sum(masses)
    # Inverse transform in two steps: the part in which the cumulative probability passes the noise, then the token.
    # Greedy: the part, then the token, with the greatest logit; the first of several.
    inverse_temperature = tl.load(inverse_temperature_ptr)
    greedy = inverse_temperature == 0
    # A negative number gives the token (see noise.py).
    noise = tl.load(noise_ptr + owner * new_tokens + time)
    given = noise < 0
    given_token = (-1 - noise).to(tl.int32)
    target = noise * total
    last = tl.max(tl.where(masses > 0, part, 0))
    drawn_part = tl.minimum(tl.sum((tl.cumsum(masses, 0) <= target).to(tl.int32)), last)
    sampled_part = tl.where(greedy, tl.min(tl.where(tops == top, part, PARTS)), drawn_part)
    chosen_part = tl.where(given, given_token // BLOCK, sampled_part)
    rest = target - tl.sum(tl.where(part < chosen_part, masses, 0.0))
    column = chosen_part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_ptr + source * V + column, column < V, float("-inf")).to(tl.float32)
    logit *= tl.where(greedy, 1.0, inverse_temperature)
    weight = tl.exp(logit - top)
    last_token = tl.max(tl.where(weight > 0, column, 0))
    drawn = tl.minimum(chosen_part * BLOCK + tl.sum((tl.cumsum(weight, 0) <= rest).to(tl.int32)), last_token)
    sampled = tl.where(greedy, tl.min(tl.where(logit == top, column, V - 1)), drawn)
    token = tl.where(given, given_token, sampled)
    logp = tl.sum(tl.where(column == token, logit, 0.0)) - top - tl.log(total)
    active = tl.load(active_ptr + row)
    if active:
        ended = time + 1 >= tl.load(limit_ptr + owner)
        for i in tl.static_range(ENDS):
            ended = ended | ((token == tl.load(ends_ptr + i)) & (noise >= 0))
        tl.store(token_ptr + row, token)
        tl.store(time_ptr + row, time + 1)
        tl.store(tokens_ptr + owner * new_tokens + time, token)
        tl.store(logp_ptr + owner * new_tokens + time, logp)
        if ended:
            tl.store(length_ptr + owner, time + 1)
            tl.store(active_ptr + row, 0)


def sample_tokens(
    logits_UV: torch.Tensor,
    source_B: torch.Tensor,
    batch: DecodeBatch,
    results: Results,
    inverse_temperature: torch.Tensor,
    scratch: Scratch,
) -> None:
    """Samples the next token of every active row by inverse transform with its noise, and stores its log-probability.
    A row with a given token takes that one, which ends it only at its limit.

    Row b reads the logits at source_B[b], once and without a copy. `inverse_temperature` is read on the GPU, so one
    graph serves every temperature; 0 takes the likeliest token, with its log-probability at temperature 1.
    """
    weigh(logits_UV, source_B, inverse_temperature, scratch)
    pick(logits_UV, source_B, batch, results, inverse_temperature, scratch)


def weigh(logits_UV: torch.Tensor, source_B: torch.Tensor, inverse_temperature: torch.Tensor, scratch: Scratch) -> None:
    """Writes to `scratch` the greatest logit and the probability mass of each part of the vocabulary."""
    V = logits_UV.shape[1]
    parts = triton.cdiv(V, LOGITS_PER_PROGRAM)
    _weigh[(len(source_B), parts)](
        logits_UV, source_B, *scratch, inverse_temperature, V, parts, BLOCK=LOGITS_PER_PROGRAM, num_warps=8
    )


def pick(
    logits_UV: torch.Tensor,
    source_B: torch.Tensor,
    batch: DecodeBatch,
    results: Results,
    inverse_temperature: torch.Tensor,
    scratch: Scratch,
) -> None:
    """Samples a token of each row from the result of `weigh`."""
    V = logits_UV.shape[1]
    parts = triton.cdiv(V, LOGITS_PER_PROGRAM)
    _pick[(len(source_B),)](
        logits_UV, source_B, *scratch, results.noise_NL, batch.owner_B, batch.active_B, batch.token_B, batch.time_B,
        results.tokens_NL, results.logp_NL, results.length_N, results.limit_N, results.ends, inverse_temperature,
        V, parts, results.tokens_NL.shape[1],
        ENDS=len(results.ends), PARTS=triton.next_power_of_2(parts), BLOCK=LOGITS_PER_PROGRAM, num_warps=8,
    )  # fmt: skip
