"""The schedule of a rollout: which completions are decoded now, and which blocks hold their keys and values.

Completion n is sample n % group_size of problem n // group_size. A row is a completion that is being decoded. A block
holds the keys and values of 64 tokens, in all layers, of one completion or one prompt. Every 32 tokens the engine
takes a look: completions that have ended free their blocks, rows get the blocks of their next tokens, and waiting
completions start where there is room. If no block is left, the youngest row is dropped. It starts again later from its
first token, and its noise, whose key is the completion, gives it the same tokens.

Completions start in order of their number, and the one dropped is the youngest. So among running and waiting
completions a smaller number is always an earlier start: the order of numbers is the order of age, of the batch and of
the queue.

A row whose turn has ended is paused: it leaves the batch and keeps its blocks until it has been answered. Then it has
ended, or goes on in the order of the numbers, before any completion starts. Paused rows are the first to be dropped,
the youngest of them first; so running rows may be younger. Axis letters: types.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from grpo.errors import GrpoError

BLOCK_TOKENS = 64
TOKENS_BETWEEN_LOOKS = 32
FIRST_TOKEN = np.ones(1, np.int32)
"""Age of a row that starts."""


@dataclass(frozen=True)
class Room:
    """What a KV cache holds at once."""

    blocks: int
    """Of prompts and completions together."""
    rows: int


@dataclass(frozen=True)
class Look:
    """What changes now. Completions are in batch order: the rows of one problem are adjacent."""

    started: tuple[int, ...]
    """Completions that start now; they are among `running`."""
    dropped: tuple[int, ...]
    """Completions that lose their keys and values now and start again later."""
    running: tuple[int, ...]
    finished: tuple[int, ...]
    """Problems whose last completion has ended since the look before."""
    resumed: tuple[int, ...] = ()
    """Paused completions that go on now with their keys and values; they are among `running`."""


Tokens = TypeVar("Tokens", int, np.ndarray)


def blocks_of(tokens: Tokens) -> Tokens:
    """Number of blocks that hold these tokens of one prompt or completion."""
    return -(-tokens // BLOCK_TOKENS)


class Schedule:
    """Decides without clocks or randomness: the same endings give the same decisions."""

    def __init__(
        self,
        prompt_tokens: Sequence[int],
        group_size: int,
        new_tokens: int,
        room: Room,
        ahead: int = TOKENS_BETWEEN_LOOKS,
    ):
        """`ahead`: tokens that every row may sample until the next look."""
        P, N = len(prompt_tokens), len(prompt_tokens) * group_size
        longest = max(prompt_tokens, default=0)
        blocks, prompt_blocks = blocks_of(new_tokens), blocks_of(longest)
        if blocks + prompt_blocks > room.blocks:
            raise GrpoError(
                f"field max_new_tokens: {new_tokens} tokens and a prompt of {longest} need {blocks + prompt_blocks} "
                f"blocks of {BLOCK_TOKENS}, and the KV cache has {room.blocks}; lower max_new_tokens or shorten the "
                "prompt"
            )
        self.group_size, self.new_tokens, self.room, self.ahead = group_size, new_tokens, room, ahead
        self.time_N = np.zeros(N, np.int32)
        """Tokens of each row, as if none had ended, and of each paused one; 0 for others."""
        self._running_N, self._ended_N = np.zeros(N, np.bool_), np.zeros(N, np.bool_)
        self._found_rows: np.ndarray | None = None
        self._asked_N = np.zeros(N, np.bool_)
        """Completions whose turn has ended, until they are answered."""
        self._kept_N = np.zeros(N, np.bool_)
        """Those, and answered ones, that are not in the batch and have keys and values."""
        self._sampled = self._ended_early = 0
        """Tokens that rows have sampled between looks, and completions that ended before the limit."""
        # Owners of blocks are the completions, then the prompts. Block 0 is a spare that nobody owns.
        self._free = np.arange(1, room.blocks + 1, dtype=np.int32)
        self._held_O = np.zeros(N + P, np.int64)
        self._table_OT = np.zeros((N + P, max(blocks, prompt_blocks)), np.int32)
        self.table_NT = self._table_OT[:N, :blocks]
        """Blocks of each running or paused completion, in order; 0 where it has none."""
        self.prompt_table_PT = self._table_OT[N:, :prompt_blocks]
        """Blocks of each prompt that has rows; 0 where it has none."""
        self._prompt_blocks_P = blocks_of(np.array(prompt_tokens, np.int64))
        self._first_blocks = int(self._needed(np.array(1)))
        """Of a completion that starts."""

    @property
    def done(self) -> bool:
        """All completions have ended, and `look` has reported all problems as finished."""
        return bool(self._ended_N.all())

    @property
    def left(self) -> int:
        """Most tokens that a row may still sample."""
        return int(self.new_tokens - self.time_N[self._rows].min(initial=self.new_tokens))

    def look(self, ended: Sequence[int], paused: Mapping[int, int] | None = None) -> Look:
        """`ended`: completions whose end is new. `paused`: tokens of those whose turn has ended since the last look."""
        finished = self._end(np.array(ended, np.int64))
        if paused:
            self._pause(paused)
        resumed: list[int] = []
        started: list[int] = []
        dropped = self._grow()
        if not dropped and self._answered.any():
            resumed, dropped = self._go_on()
        if not dropped and not self._answered.any():
            started = self._start()
        return Look(tuple(started), tuple(dropped), tuple(self._rows.tolist()), tuple(finished), tuple(resumed))

    def resume(self, answered: Sequence[int]) -> None:
        """These completions, whose turn has ended, have another one."""
        self._asked_N[answered] = False

    def advance(self, tokens: int) -> None:
        """Every row has sampled `tokens` more tokens."""
        rows = self._rows
        self._sampled += tokens * len(rows)
        self.time_N[rows] = np.minimum(self.time_N[rows] + tokens, self.new_tokens)

    @property
    def _rows(self) -> np.ndarray:
        """Running completions, in order; found once for each change, because a look asks several times."""
        if self._found_rows is None:
            self._found_rows = np.flatnonzero(self._running_N)
        return self._found_rows

    def _run(self, completions: np.ndarray, running: bool) -> None:
        self._running_N[completions], self._found_rows = running, None

    @property
    def _answered(self) -> np.ndarray:
        """Completions that have another turn, and their keys and values."""
        return self._kept_N > self._asked_N

    def _pause(self, paused: Mapping[int, int]) -> None:
        rows, tokens = np.array(list(paused)), np.array(list(paused.values()))
        self._kept_N[rows] = kept = self._running_N[rows]  # not those dropped before their end was known
        self._asked_N[rows], self.time_N[rows] = True, kept * tokens
        self._run(rows, False)

    def _end(self, ended: np.ndarray) -> list[int]:
        if not len(ended):
            return []
        self._ended_early += int((self.time_N[ended] < self.new_tokens).sum())
        self._ended_N[ended], self._asked_N[ended] = True, False
        self._remove(ended)
        problems = np.unique(ended // self.group_size)
        return problems[self._ended_N.reshape(-1, self.group_size)[problems].all(axis=1)].tolist()

    def _grow(self) -> list[int]:
        """Gives rows the blocks of their next tokens. If there are too few, it drops the youngest paused rows, then the
        youngest running ones."""
        rows = self._rows
        needed = self._needed(self.time_N[rows])
        missing = np.maximum(needed - self._held_O[rows], 0)
        total = int(missing.sum())
        dropped = self._drop_paused(total) if total > len(self._free) else []
        kept = len(rows)
        while total > len(self._free):
            kept -= 1
            total -= int(missing[kept])
            self._remove(rows[kept : kept + 1])
        self._give(rows[:kept], needed[:kept])
        return sorted([*dropped, *rows[kept:].tolist()])

    def _go_on(self) -> tuple[list[int], list[int]]:
        """Puts answered rows back into the batch, in order, while there are blocks of their next tokens. If nothing
        runs, at least one goes on, and paused rows are dropped for it. Returns those that go on, and the dropped."""
        rows, dropped = np.flatnonzero(self._answered), list[int]()
        running = len(self._rows)
        rows = rows[: self.room.rows - running]
        if not len(rows):
            return [], dropped
        needed = self._needed(self.time_N[rows])
        missing = np.maximum(needed - self._held_O[rows], 0)
        if not running and missing[0] > len(self._free):
            dropped = self._drop_paused(int(missing[0]), but=int(rows[0]))
            keep = ~np.isin(rows, dropped)
            rows, needed, missing = rows[keep], needed[keep], missing[keep]
        count = int(np.searchsorted(np.cumsum(missing), len(self._free), side="right"))
        rows = rows[:count]
        self._give(rows, needed[:count])
        self._run(rows, True)
        self._kept_N[rows] = False
        return rows.tolist(), dropped

    def _drop_paused(self, blocks: int, but: int = -1) -> list[int]:
        """Drops paused rows, the youngest first, until this number of blocks is free or none is left."""
        dropped: list[int] = []
        for row in np.flatnonzero(self._kept_N)[::-1].tolist():
            if blocks <= len(self._free):
                break
            if row != but:
                self._remove(np.array([row]))
                dropped.append(row)
        return sorted(dropped)

    def _start(self) -> list[int]:
        """Starts waiting completions while every row can keep its blocks and grow to its reserve.

        So a start rarely ends in a drop. If nothing runs or is paused, at least one completion starts: a whole one
        fits.
        """
        rows = np.flatnonzero(self._running_N | self._kept_N) if self._kept_N.any() else self._rows
        reserves = self._reserve(np.concatenate([self.time_N[rows], FIRST_TOKEN]))
        left = len(self._free) - int(np.maximum(reserves[:-1] - self._held_O[rows], 0).sum())
        cost_of_one = max(self._first_blocks, int(reserves[-1]))
        # No more than fit without the blocks of their prompts. In most looks that is none: nothing else is computed.
        if (most := min(left // cost_of_one, self.room.rows - len(self._rows))) <= 0:
            return []
        waiting = np.flatnonzero(~(self._running_N | self._ended_N | self._kept_N | self._asked_N))[:most]
        problems = waiting // self.group_size
        N = len(self.time_N)
        opens = (np.diff(problems, prepend=-1) != 0) & (self._held_O[N + problems] == 0)  # first row of its prompt
        cost = cost_of_one + opens * self._prompt_blocks_P[problems]
        count = int(np.searchsorted(np.cumsum(cost), left, side="right"))
        started, opened = waiting[:count], problems[:count][opens[:count]]
        self._run(started, True)
        self.time_N[started] = 1
        self._give(started, np.full(len(started), self._first_blocks))
        self._give(N + opened, self._prompt_blocks_P[opened])
        return started.tolist()

    def _needed(self, time: np.ndarray) -> np.ndarray:
        """Blocks that rows need until the next look. The newest token has no keys yet: it gets them when the next one
        is sampled."""
        return blocks_of(np.minimum(time + self.ahead - 1, self.new_tokens))

    def _reserve(self, time: np.ndarray) -> np.ndarray:
        """Blocks that a row of this age takes at most, on average over rows: they grow, and some of them end.

        If every token ends a completion with probability 1 / mean, a row has (time + more) · exp(-more / mean) tokens
        on average when `more` have been sampled; that is largest at more = mean - time. The mean is that of this
        rollout so far: tokens per completion that ended before the limit, as if one more had ended at the limit.
        """
        mean = (self._sampled + self.new_tokens) / (self._ended_early + 1)
        more = np.maximum(min(mean, self.new_tokens) - time, 0)
        return blocks_of(np.ceil((time + more) * np.exp(-more / mean)).astype(np.int64))

    def _give(self, owners: np.ndarray, needed: np.ndarray) -> None:
        """Gives each owner blocks until it has as many as it needs."""
        held = self._held_O[owners]
        missing = np.maximum(needed - held, 0)
        if not (total := int(missing.sum())):
            return
        nth = np.arange(total) - np.repeat(np.cumsum(missing) - missing, missing)
        self._table_OT[np.repeat(owners, missing), np.repeat(held, missing) + nth] = self._free[:total]
        self._free = self._free[total:]
        self._held_O[owners] = held + missing

    def _remove(self, completions: np.ndarray) -> None:
        """Takes rows out of the batch, and frees their blocks and those of prompts that have no rows left."""
        self._run(completions, False)
        self._kept_N[completions], self.time_N[completions] = False, 0
        problems = np.unique(completions // self.group_size)
        running_PG, kept_PG = (each.reshape(-1, self.group_size)[problems] for each in (self._running_N, self._kept_N))
        closed = problems[~(running_PG | kept_PG).any(axis=1)]
        owners = np.concatenate([completions, len(self.time_N) + closed])
        blocks = self._table_OT[owners]
        self._free = np.concatenate([blocks[blocks > 0], self._free])
        self._table_OT[owners], self._held_O[owners] = 0, 0
