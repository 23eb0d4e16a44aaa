"""Which problems of a task without end are held out."""

from __future__ import annotations

import zlib

ONE_IN = 10


def is_held_out(question: str) -> bool:
    """By a hash of what is asked, whatever stream of problems it turns up in.

    >>> [number for number in range(10, 40) if is_held_out(f"{number}*12=")]
    [15, 17, 20, 26, 27]
    """
    return zlib.crc32(question.encode()) % ONE_IN == 0
