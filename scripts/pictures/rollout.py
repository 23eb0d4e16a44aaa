"""docs/images/rollout.svg: the rows of a small rollout over time, and the blocks that they hold.

The real schedule decides, on drawn lengths and without a model. Above it, for comparison: the same completions in
waves, where every row reserves its longest length and the next wave starts when all rows of the last have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pictures.svg import BLUE, GREY, ORANGE, TEAL, Points, axis_line, document, text

from grpo.rollout.occupancy import drawn_lengths
from grpo.rollout.schedule import BLOCK_TOKENS, TOKENS_BETWEEN_LOOKS, Room, Schedule, blocks_of

PROMPTS, GROUP_SIZE, PROMPT_TOKENS, NEW_TOKENS, MEAN_TOKENS = 8, 4, 128, 1024, 256
ROOM = Room(blocks=72, rows=PROMPTS * GROUP_SIZE)

WIDTH, LEFT, RIGHT = 860, 76, 16
BAR, CHART, PANEL = 6, 56, 308


@dataclass(frozen=True)
class Bar:
    """A row, from its first token (sampled at a look, in no decoding step) to its last."""

    completion: int
    start: int
    end: int
    dropped: bool = False


@dataclass(frozen=True)
class Trace:
    """Times are decoding steps: one token of every row."""

    bars: Sequence[Bar]
    held: Sequence[tuple[int, int]]
    """Time, and blocks that rows and prompts hold from then on."""
    steps: int


def waves(lengths: np.ndarray) -> Trace:
    rows = most_whole_rows()
    bars: list[Bar] = []
    held: list[tuple[int, int]] = []
    now = 0
    for first in range(0, len(lengths), rows):
        wave = range(first, min(first + rows, len(lengths)))
        bars += [Bar(n, now, now + int(lengths[n]) - 1) for n in wave]
        held.append((now, whole_blocks(wave)))
        now += int(lengths[wave].max()) - 1
    return Trace(bars, [*held, (now, 0)], now)


def most_whole_rows() -> int:
    """Completions that fit at once if each reserves its longest length."""
    return max(n for n in range(1, ROOM.rows + 1) if whole_blocks(range(n)) <= ROOM.blocks)


def whole_blocks(completions: Sequence[int]) -> int:
    prompts = {n // GROUP_SIZE for n in completions}
    return len(completions) * blocks_of(NEW_TOKENS) + len(prompts) * blocks_of(PROMPT_TOKENS)


def scheduled(lengths: np.ndarray) -> Trace:
    schedule = Schedule([PROMPT_TOKENS] * PROMPTS, GROUP_SIZE, NEW_TOKENS, ROOM)
    bars: list[Bar] = []
    held: list[tuple[int, int]] = []
    start_of: dict[int, int] = {}
    ended: list[int] = []
    now = 0
    while not schedule.done:
        look = schedule.look(ended)
        bars += [Bar(n, start_of.pop(n), now, dropped=True) for n in look.dropped]
        start_of |= dict.fromkeys(look.started, now)
        held.append((now, np.count_nonzero(schedule.table_NT) + np.count_nonzero(schedule.prompt_table_PT)))
        rows = np.array(look.running, dtype=np.int64)
        # A look comes early if all rows end before it.
        now += int(np.minimum(lengths[rows] - schedule.time_N[rows], TOKENS_BETWEEN_LOOKS).max(initial=0))
        schedule.advance(TOKENS_BETWEEN_LOOKS)
        ended = rows[lengths[rows] <= schedule.time_N[rows]].tolist()
        bars += [Bar(n, start_of[n], start_of[n] + int(lengths[n]) - 1) for n in ended]
    return Trace(bars, held, now)


def filled(trace: Trace, time: int) -> float:
    """Blocks that the keys and values of running rows and their prompts would fill without gaps."""
    running = [bar for bar in trace.bars if bar.start <= time < bar.end]
    prompts = {bar.completion // GROUP_SIZE for bar in running}
    return (sum(time - bar.start + 1 for bar in running) + PROMPT_TOKENS * len(prompts)) / BLOCK_TOKENS


def picture() -> str:
    lengths = drawn_lengths(PROMPTS * GROUP_SIZE, MEAN_TOKENS, NEW_TOKENS)
    before, after = waves(lengths), scheduled(lengths)
    again = sum(bar.dropped for bar in after.bars)
    titles = (
        f"waves of {most_whole_rows()} rows that reserve {NEW_TOKENS:,} tokens each: {before.steps:,} decoding steps",
        f"rows that come and go, in blocks: {after.steps:,} decoding steps, {again} dropped row{'s' * (again != 1)}",
    )
    longest = max(before.steps, after.steps)
    parts = [
        text(LEFT, 22, f"{PROMPTS} prompts × {GROUP_SIZE} completions in a KV cache of {ROOM.blocks} blocks", size=16),
        *(line for i in (0, 1) for line in panel((before, after)[i], titles[i], 34 + i * PANEL, longest)),
        *legend(34 + 2 * PANEL + 26),
    ]
    return document(WIDTH, 34 + 2 * PANEL + 36, parts)


def panel(trace: Trace, title: str, top: float, longest: int) -> list[str]:
    """Rows as bars, and the blocks below them."""
    above, rows = top + 26, PROMPTS * GROUP_SIZE
    floor = above + rows * BAR + 10 + CHART

    def x(time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * time / longest

    def y(blocks: float) -> float:
        return floor - CHART * blocks / ROOM.blocks

    def area(points: Points, colour: str, opacity: float) -> str:
        outline = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in [(0, 0), *points, (trace.steps, 0)])
        return f'<polygon points="{outline}" fill="{colour}" opacity="{opacity}"/>'

    stairs = [point for (a, b), (c, _) in pairwise([*trace.held, (trace.steps, 0)]) for point in ((a, b), (c, b))]
    tokens = [(time, filled(trace, time)) for time in range(0, trace.steps, TOKENS_BETWEEN_LOOKS // 2)]
    return [
        text(LEFT, top + 16, title, weight="600"),
        *(
            text(LEFT - 8, above + (p + 0.5) * GROUP_SIZE * BAR + 4, f"prompt {p + 1}", size=11, anchor="end")
            for p in range(PROMPTS)
        ),
        *(bar_of(bar, x(bar.start), x(bar.end), above + bar.completion * BAR) for bar in trace.bars),
        area(stairs, GREY, 0.35),
        area(tokens, TEAL, 0.8),
        *(axis_line(LEFT, WIDTH - RIGHT, y(blocks), str(blocks)) for blocks in (0, ROOM.blocks)),
        *(text(x(t), floor + 15, f"{t:,}", size=11, anchor="middle") for t in range(0, longest, NEW_TOKENS)),
    ]


def bar_of(bar: Bar, left: float, right: float, top: float) -> str:
    colour = ORANGE if bar.dropped else BLUE
    opacity = 0.6 if bar.completion // GROUP_SIZE % 2 and not bar.dropped else 1
    size = f'width="{max(1.5, right - left):.1f}" height="{BAR - 1.5}"'
    return f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}" opacity="{opacity}"/>'


def legend(top: float) -> list[str]:
    meanings = {BLUE: "row", ORANGE: "dropped row", GREY: "blocks held", TEAL: "filled with keys and values"}
    parts, left = [], LEFT
    for colour, meaning in meanings.items():
        parts.append(f'<rect x="{left}" y="{top - 9}" width="12" height="10" fill="{colour}"/>')
        parts.append(text(left + 18, top, meaning))
        left += 50 + 7 * len(meaning)
    return [*parts, text(WIDTH - RIGHT, top, "decoding steps", anchor="end")]
