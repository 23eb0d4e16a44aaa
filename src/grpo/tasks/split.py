"""Decides which problems of an endless task are held out."""

from __future__ import annotations

import zlib

ONE_IN = 10


def is_held_out(question: str) -> bool:
    """Whether a question is held out: by its hash, so the same in every stream of problems.

    >>> [number for number in range(10, 40) if is_held_out(f"{number}*12=")]
    [15, 17, 20, 26, 27]
    """
    return zlib.crc32(question.encode()) % ONE_IN == 0
