"""Counter-based randomness: a number depends on its coordinates alone, so there is no generator state to lose.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

WORD = np.uint64(0xFFFFFFFF)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox(counter: Sequence[np.ndarray | np.uint64], key: tuple[int, int]) -> list[np.ndarray]:
    """Four 32-bit words from four counter words (broadcast against one another) and two key words.

    >>> [hex(int(word)) for word in philox([np.uint64(0)] * 4, (0, 0))]  # the reference implementation's first vector
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product1 & WORD,
            (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product0 & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def sampling_noise(
    seed: int, purpose: str, step: int, problem_ids: Sequence[str], group_size: int, positions: int
) -> np.ndarray:
    """Uniforms in [0, 1), float32 [P, G, positions]; a row depends on its problem and sample, not on the batch."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    problem_words = [
        int.from_bytes(hashlib.blake2b(problem_id.encode(), digest_size=4).digest(), "little")
        for problem_id in problem_ids
    ]
    counter: list[np.ndarray | np.uint64] = [
        np.uint64(step),
        np.array(problem_words, dtype=np.uint64)[:, None, None],
        np.arange(group_size, dtype=np.uint64)[None, :, None],
        np.arange(positions, dtype=np.uint64)[None, None, :],
    ]
    # 24 bits fill a float32 exactly, so that every device makes the same number of them.
    return ((philox(counter, key)[0] >> np.uint64(8)).astype(np.float32)) * np.float32(2.0**-24)
