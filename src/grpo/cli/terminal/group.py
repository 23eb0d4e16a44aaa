"""Prints a group of completions, in a terminal or a log.

Prompts and completions are untrusted: they are printed through `printable` only, and reach rich as text, never as
markup.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from grpo.errors import one_line
from grpo.types import Completion, Group

FAINT = "dim"
"""Style of labels. It has no colour, so it suits dark and light terminals."""
PLAIN_WIDTH = 100
"""Width of what is printed to a log."""
ABOVE, LEVEL, BELOW = (0x2F, 0x7F, 0xD0), (0x8A, 0x8A, 0x8A), (0xD9, 0x6B, 0x0B)


def advantage_colour(advantage: float) -> str:
    """Blue above the baseline, orange below, grey at 0: distinct for colour-blind readers, on dark and light terminals.

    >>> advantage_colour(0.0), advantage_colour(9.0), advantage_colour(-9.0)
    ('#8a8a8a', '#2f7fd0', '#d96b0b')
    """
    end = ABOVE if advantage > 0 else BELOW
    strength = math.tanh(abs(advantage))
    return "#" + "".join(f"{round(grey + (full - grey) * strength):02x}" for grey, full in zip(LEVEL, end, strict=True))


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


@dataclass(frozen=True)
class DistinctCompletion:
    """Equal completions of a group."""

    text: str
    reward: float | None
    advantage: float | None
    """Mean over the tokens; None for an unscored completion, which is not trained on."""


def instructive(groups: Sequence[Group]) -> Group:
    """The first group with unequal rewards, if there is one; else the first."""
    rewards = ({done.reward for done in group.completions if done.reward is not None} for group in groups)
    mixed = (group for group, different in zip(groups, rewards, strict=True) if len(different) > 1)
    return next(mixed, groups[0])


def best_first(group: Group) -> list[tuple[DistinctCompletion, int]]:
    """Each distinct completion and its count, the highest advantage first."""

    def row(done: Completion) -> DistinctCompletion:
        if done.reward is None or done.advantages is None:
            return DistinctCompletion(done.text, done.reward, None)
        # Rounded, because a mean over more tokens can differ in its last bit.
        return DistinctCompletion(done.text, done.reward, round(float(done.advantages.mean()), 4))

    def rank(counted: tuple[DistinctCompletion, int]) -> tuple[float, float, int]:
        row, count = counted
        unknown = -math.inf
        return (
            unknown if row.advantage is None else row.advantage,
            unknown if row.reward is None else row.reward,
            count,
        )

    return sorted(Counter(map(row, group.completions)).items(), key=rank, reverse=True)


def group_lines(group: Group, width: int, most: int) -> list[Text]:
    """The prompt above its completions, the best first. Of more than `most` distinct ones, the middle is left out."""
    rows = best_first(group)
    answer = printable(group.problem.answer, width // 4)
    answer = f"   answer {answer}" if answer else ""
    room = max(10, width - 24)
    prompt = printable(group.problem.prompt, max(10, room - cell_len(answer)))
    lines = [Text.assemble((f"{'reward':>6}  {'advantage':>9}       ", FAINT), (prompt, "bold"), (answer, FAINT))]
    for row, count in rows:
        reward = "–" if row.reward is None else f"{row.reward:.2f}"
        advantage = "–" if row.advantage is None else f"{row.advantage:+z.2f}"
        times = f"×{count}" if count > 1 else ""
        colour = "" if row.advantage is None else advantage_colour(row.advantage)
        text = printable(row.text, room) if row.text else "(nothing)"
        cells = (f"{reward:>6}  ", (f"{advantage:>9}", f"bold {colour}"), (f" {times:>4}  ", FAINT), text)
        lines.append(Text.assemble(*cells))
    if len(rows) > most:
        best = 1 + most // 2
        worst = len(lines) - (most - most // 2 - 1)
        between = Text(f"{'':24}… {worst - best} more", FAINT)
        lines[best:worst] = [between]
    return lines


def print_group(group: Group) -> None:
    """All completions of a group, in colour if there is a terminal."""
    console = Console()
    lines = group_lines(group, console.width if sys.stdout.isatty() else PLAIN_WIDTH, most=len(group.completions))
    for line in lines:
        if sys.stdout.isatty():
            console.print(line, soft_wrap=True)
        else:
            write_line(line.plain)


def write_line(line: str) -> None:
    """Print at once, so that a log can be followed. Characters that the encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # border: the reader, `head` for instance, has left; the run continues
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
