"""Sampling noise keyed by (seed, purpose, step, problem id, sample, position): counter-based, no generator state.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), the same on every device.

A negative entry of a noise table stands for a given token: -1 - token, exact in float32 below 2^24. The row takes that
token at that place instead of sampling one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox(counter: Sequence[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """Four 32-bit words from four counter words (int64, broadcast against one another) and two key words.

    >>> [hex(int(word)) for word in philox([torch.tensor(0)] * 4, (0, 0))]  # the reference's first vector
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product of two words fills 64 bits, the sign bit included; the bits are the same.
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) & WORD ^ c1 ^ k0,
            product1 & WORD,
            (product0 >> 32) & WORD ^ c3 ^ k1,
            product0 & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return [c0, c1, c2, c3]


def sampling_noise(
    seed: int,
    purpose: str,
    step: int,
    problem_ids: Sequence[str],
    group_size: int,
    positions: int,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Uniforms in [0, 1), float32 [P, G, positions]; a row depends on its problem and sample, not on the batch."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    problem_words = [
        int.from_bytes(hashlib.blake2b(problem_id.encode(), digest_size=4).digest(), "little")
        for problem_id in problem_ids
    ]
    step &= WORD
    if torch.device(device).type == "cuda":
        from grpo.rollout.cuda import kernels

        return kernels.uniforms(problem_words, step, key, group_size, positions, torch.device(device))
    counter = [
        torch.tensor(step, device=device),
        torch.tensor(problem_words, device=device)[:, None, None],
        torch.arange(group_size, device=device)[None, :, None],
        torch.arange(positions, device=device)[None, None, :],
    ]
    # A float32 holds 24 bits exactly, so every device makes the same number.
    return (philox(counter, key)[0] >> 8).float() * 2.0**-24


def give(noise_NL: torch.Tensor, tokens: Mapping[int, np.ndarray]) -> None:
    """Makes each of these rows take the given tokens at its first places.

    >>> noise_NL = torch.full((2, 3), 0.5)
    >>> give(noise_NL, {1: np.array([0, 7])})
    >>> noise_NL.tolist()
    [[0.5, 0.5, 0.5], [-1.0, -8.0, 0.5]]
    """
    codes_ML = np.zeros((len(tokens), max(map(len, tokens.values()), default=0)), np.float32)
    for code_L, given in zip(codes_ML, tokens.values(), strict=True):
        code_L[: len(given)] = -1.0 - given
    index_M = torch.tensor(list(tokens), dtype=torch.int64, device=noise_NL.device)
    codes, places = torch.from_numpy(codes_ML).to(noise_NL.device), slice(codes_ML.shape[1])
    noise_NL[index_M, places] = torch.where(codes < 0, codes, noise_NL[index_M, places])


def given_tokens(noise_N: torch.Tensor) -> torch.Tensor:
    """The given tokens of negative entries; of no meaning for others."""
    return (-1 - noise_N).long()
