"""Prints a group of completions, in a terminal or a log.

Prompts and completions are untrusted: they are printed through `printable` only, and reach rich as text, never as
markup.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from grpo.cli.terminal.episode import ending, episode_lines, in_one_line, spoken
from grpo.cli.terminal.line import FAINT, PLAIN_WIDTH, printable, write_line
from grpo.types import Completion, Group

ABOVE, LEVEL, BELOW = (0x2F, 0x7F, 0xD0), (0x8A, 0x8A, 0x8A), (0xD9, 0x6B, 0x0B)


def advantage_colour(advantage: float) -> str:
    """Blue above the baseline, orange below, grey at 0: distinct for colour-blind readers, on dark and light terminals.

    >>> advantage_colour(0.0), advantage_colour(9.0), advantage_colour(-9.0)
    ('#8a8a8a', '#2f7fd0', '#d96b0b')
    """
    end = ABOVE if advantage > 0 else BELOW
    strength = math.tanh(abs(advantage))
    return "#" + "".join(f"{round(grey + (full - grey) * strength):02x}" for grey, full in zip(LEVEL, end, strict=True))


TEXT_COLUMN = 24
"""Where texts begin: after reward, advantage and count."""


@dataclass(frozen=True)
class DistinctCompletion:
    """Equal completions of a group."""

    text: str
    """Of an episode: all its turns and observations."""
    reward: float | None
    advantage: float | None
    """Mean over the tokens; None for an unscored completion, which is not trained on."""
    ending: str = ""
    """Of an episode."""


def instructive(groups: Sequence[Group]) -> Group:
    """The first group with unequal rewards, if there is one; else the first."""
    rewards = ({done.reward for done in group.completions if done.reward is not None} for group in groups)
    mixed = (group for group, different in zip(groups, rewards, strict=True) if len(different) > 1)
    return next(mixed, groups[0])


def best_first(group: Group) -> list[tuple[DistinctCompletion, list[Completion]]]:
    """Each distinct completion and those equal to it, the highest advantage first."""
    equal: dict[DistinctCompletion, list[Completion]] = {}
    for done in group.completions:
        advantage = None
        if done.reward is not None and done.advantages is not None:
            # Rounded, because a mean over more tokens can differ in its last bit.
            advantage = round(float(done.advantages.mean()), 4)
        row = DistinctCompletion(in_one_line(done.text, spoken(done)), done.reward, advantage, ending(done))
        equal.setdefault(row, []).append(done)

    def rank(found: tuple[DistinctCompletion, list[Completion]]) -> tuple[float, float, int]:
        row, completions = found
        unknown = -math.inf
        return (
            unknown if row.advantage is None else row.advantage,
            unknown if row.reward is None else row.reward,
            len(completions),
        )

    return sorted(equal.items(), key=rank, reverse=True)


def group_lines(group: Group, width: int, most: int, *, turns: bool = False) -> list[Text]:
    """The prompt above its completions, the best first. Of more than `most` distinct ones, the middle is left out.
    `turns`: an episode has a line for each turn and observation below its own, instead of being one line."""
    rows = best_first(group)
    answer = printable(group.problem.answer, width // 4)
    answer = f"   answer {answer}" if answer else ""
    room = max(10, width - TEXT_COLUMN)
    prompt = printable(group.problem.prompt, max(10, room - cell_len(answer)))
    blocks = [[Text.assemble((f"{'reward':>6}  {'advantage':>9}       ", FAINT), (prompt, "bold"), (answer, FAINT))]]
    for row, completions in rows:
        reward = "–" if row.reward is None else f"{row.reward:.2f}"
        advantage = "–" if row.advantage is None else f"{row.advantage:+z.2f}"
        times = f"×{len(completions)}" if len(completions) > 1 else ""
        colour = "" if row.advantage is None else advantage_colour(row.advantage)
        whole = turns and row.ending
        text = Text(row.ending, FAINT) if whole else printable(row.text, room) if row.text else "(nothing)"
        cells = (f"{reward:>6}  ", (f"{advantage:>9}", f"bold {colour}"), (f" {times:>4}  ", FAINT), text)
        lines = episode_lines(completions[0], room) if whole else []
        blocks.append([Text.assemble(*cells), *(Text(" " * TEXT_COLUMN).append_text(line) for line in lines)])
    if len(rows) > most:
        best = 1 + most // 2
        worst = len(blocks) - (most - most // 2 - 1)
        between = Text(f"{'':{TEXT_COLUMN}}… {worst - best} more", FAINT)
        blocks[best:worst] = [[between]]
    return [line for block in blocks for line in block]


def print_group(group: Group) -> None:
    """All completions of a group, and the turns of episodes, in colour if there is a terminal."""
    console = Console()
    width = console.width if sys.stdout.isatty() else PLAIN_WIDTH
    for line in group_lines(group, width, most=len(group.completions), turns=True):
        if sys.stdout.isatty():
            console.print(line, soft_wrap=True)
        else:
            write_line(line.plain)
