"""Lines of untrusted text, in a terminal or a log."""

from __future__ import annotations

import os
import sys

from rich.cells import cell_len, set_cell_size

from grpo.errors import one_line

FAINT = "dim"
"""Style of labels. It has no colour, so it suits dark and light terminals."""
PLAIN_WIDTH = 100
"""Width of what is printed to a log."""


def printable(text: str, width: int) -> str:
    r"""Untrusted text as one line of at most `width` cells. A longer one loses its middle, because answers come last.

    >>> printable("so\n\x1b[31m42", 80), printable("one, two, three, four, 42", 15)
    ('so⏎\\x1b[31m42', 'one, two,…r, 42')
    """
    if len(text) > 2 * width:  # only the ends of a very long text are shown
        text = text[:width] + text[-width:]
    line = one_line(text.replace("\r\n", "\n").replace("\n", "⏎"), most=20 * width)
    if cell_len(line) <= width:
        return line
    tail = width // 3
    return f"{set_cell_size(line, width - tail - 1)}…{set_cell_size(line[::-1], tail)[::-1]}"


def write_line(line: str) -> None:
    """Print at once, so that a log can be followed. Characters that the encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # border: the reader, `head` for instance, has left; the run continues
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
