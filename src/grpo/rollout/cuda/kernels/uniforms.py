"""The sampling noise of `grpo.rollout.noise` in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["problems", "group_size", "positions"])
def _uniforms(words_ptr, out_ptr, problems, group_size, positions, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    problem = tl.load(words_ptr + row // group_size)
    step = tl.load(words_ptr + problems)
    key = tl.load(words_ptr + problems + 1).to(tl.uint64) | (tl.load(words_ptr + problems + 2).to(tl.uint64) << 32)
    zero = position * 0
    word, _, _, _ = tl.philox(
        key,
        zero.to(tl.uint32) + step.to(tl.uint32),
        zero.to(tl.uint32) + problem.to(tl.uint32),
        zero.to(tl.uint32) + (row % group_size).to(tl.uint32),
        position.to(tl.uint32),
    )
    # A float32 holds 24 bits exactly, so every device makes the same number.
    place = out_ptr + row.to(tl.int64) * positions + position
    tl.store(place, (word >> 8).to(tl.float32) * 5.9604644775390625e-08, position < positions)


def uniforms(
    problem_words: list[int], step: int, key: tuple[int, int], group_size: int, positions: int, device: torch.device
) -> torch.Tensor:
    """Uniforms as float32 [P, G, positions] from 32-bit words."""
    P = len(problem_words)
    words = torch.tensor([*problem_words, step, *key], device=device)
    out_PGL = torch.empty(P, group_size, positions, device=device)
    block = min(1024, triton.next_power_of_2(positions))
    grid = (P * group_size, triton.cdiv(positions, block))
    _uniforms[grid](words, out_PGL, P, group_size, positions, BLOCK=block, num_warps=1)
    return out_PGL
