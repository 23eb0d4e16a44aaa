"""How full a KV cache would be: the schedule of a rollout, run on drawn lengths instead of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo.rollout.schedule import BLOCK_TOKENS, TOKENS_BETWEEN_LOOKS, Room, Schedule

SEED = 0
MOST_LOOKS = 10_000
"""Looks of a rollout that are simulated. A longer one is taken to go on as in these."""


@dataclass(frozen=True)
class Occupancy:
    """A whole rollout in numbers. Means are over its decoding steps, of one token for every row."""

    most_rows: int
    mean_rows: float
    steps: int
    dropped: int
    """Times that a row was dropped."""
    tokens_again: int
    """Tokens sampled again, because their row was dropped."""
    in_use: float
    """Mean share of the cache that holds keys and values of running rows and their prompts."""


def drawn_lengths(count: int, mean: float, limit: int) -> np.ndarray:
    """Lengths of completions, geometric and cut at `limit`, where their mean is about `mean`.

    >>> lengths = drawn_lengths(100_000, 500, 1024)
    >>> int(lengths.mean().round(-1)), int(lengths.max())
    (500, 1024)
    """
    if mean >= limit:
        return np.full(count, limit)
    # The mean of the cut distribution falls as the chance of an end rises.
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        chance = (low + high) / 2
        above = (1 - (1 - chance) ** limit) / chance > mean
        low, high = (chance, high) if above else (low, chance)
    return np.random.default_rng(SEED).geometric(high, count).clip(1, limit)


def occupancy_of(
    prompt_tokens: Sequence[int], group_size: int, new_tokens: int, room: Room, lengths: np.ndarray
) -> Occupancy:
    """`lengths`: tokens of each completion."""
    schedule = Schedule(prompt_tokens, group_size, new_tokens, room)
    ended: list[int] = []
    most_rows = steps = sampled = dropped = tokens_again = looks = done = 0
    held, prompts, prompt_tokens_P = 0.0, 0, np.array(prompt_tokens, np.int64)
    rows = lengths_of_rows = np.zeros(0, np.int64)
    while not schedule.done and looks < MOST_LOOKS:
        looks, done = looks + 1, done + int(lengths[ended].sum())
        ran, times = rows, schedule.time_N[rows]
        look = schedule.look(ended)
        if look.dropped:
            dropped += len(look.dropped)
            tokens_again += int(times[np.searchsorted(ran, look.dropped)].sum())
        if look.started or look.dropped or ended:
            rows = np.array(look.running, dtype=np.int64)
            problems, lengths_of_rows = rows // group_size, lengths[rows]
            prompts = int(prompt_tokens_P[problems[np.diff(problems, prepend=-1) > 0]].sum())
            most_rows = max(most_rows, len(rows))
        # A row's first token is sampled when it starts, the others in decoding steps.
        times = schedule.time_N[rows]
        left = np.minimum(lengths_of_rows - times, TOKENS_BETWEEN_LOOKS)
        now = int(left.max(initial=0))
        sampled_now = int(left.sum())
        held += now * (prompts + int(times.sum()) + sampled_now / 2)
        steps, sampled = steps + now, sampled + sampled_now
        schedule.advance(TOKENS_BETWEEN_LOOKS)
        ended = rows[lengths_of_rows <= schedule.time_N[rows]].tolist()
    steps = max(steps, 1)
    mean_rows, in_use = sampled / steps, held / (steps * room.blocks * BLOCK_TOKENS)
    done += int(np.minimum(lengths_of_rows, schedule.time_N[rows]).sum())
    whole = int(lengths.sum()) / done
    steps, dropped, tokens_again = (round(count * whole) for count in (steps, dropped, tokens_again))
    return Occupancy(most_rows, mean_rows, steps, dropped, tokens_again, in_use)
