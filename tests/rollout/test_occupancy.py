"""Rows at once, drops and the use of the cache for given lengths, worked out by hand."""

import numpy as np
import pytest

from grpo.rollout.occupancy import Occupancy, drawn_lengths, occupancy_of
from grpo.rollout.schedule import Room


def test_even_lengths_by_hand() -> None:
    """One prompt of 64 tokens and 2 completions of 33: 32 steps of 2 rows, then both have ended. The cache of 4 blocks
    holds 64 + 2 · (1 + 32 / 2) tokens on average."""
    found = occupancy_of([64], 2, 64, Room(blocks=4, rows=8), np.array([33, 33]))
    assert found == Occupancy(2, 2.0, 32, dropped=0, tokens_again=0, in_use=(64 + 34) / 256)


def test_a_row_that_ends_early_by_hand() -> None:
    """Completions of 1, 11 and 43 tokens: 10 steps of two rows, 22 of one, and 10 of one after the second look."""
    found = occupancy_of([64], 3, 64, Room(blocks=4, rows=8), np.array([1, 11, 43]))
    assert (found.most_rows, found.steps, found.mean_rows) == (3, 42, (10 + 42) / 42)


def test_a_dropped_row_is_sampled_again() -> None:
    """As in test_schedule.py: 7 blocks hold a prompt and two rows up to 192 tokens, so the second is dropped at 193
    tokens and starts again when the first has ended."""
    found = occupancy_of([64], 2, 256, Room(blocks=7, rows=4), np.array([256, 256]))
    assert (found.most_rows, found.dropped, found.tokens_again) == (2, 1, 193)
    assert (found.steps, found.mean_rows) == (255 + 255, (255 + 192 + 255) / 510)


@pytest.mark.parametrize(("mean", "limit"), [(100, 1024), (512, 1024), (1000, 1024), (1, 8)])
def test_drawn_lengths_have_their_mean(mean: int, limit: int) -> None:
    lengths = drawn_lengths(200_000, mean, limit)
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert (lengths.min(), lengths.max()) == (1, limit if mean > 1 else 1)


def test_lengths_at_the_limit() -> None:
    assert drawn_lengths(3, 64, 64).tolist() == [64, 64, 64]


@pytest.mark.parametrize(("looks", "lengths"), [(10, [33] * 40), (7, [33] * 40), (4, [65] * 6)])
def test_a_long_rollout_goes_on_as_it_began(looks: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time: the looks that are simulated, and the others, have 32 steps each."""
    whole = occupancy_of([64] * len(lengths), 1, 128, Room(blocks=3, rows=1), np.array(lengths))
    assert whole.steps == sum(lengths) - len(lengths)
    monkeypatch.setattr("grpo.rollout.occupancy.MOST_LOOKS", looks)
    found = occupancy_of([64] * len(lengths), 1, 128, Room(blocks=3, rows=1), np.array(lengths))
    assert (found.steps, found.mean_rows, found.most_rows) == (whole.steps, 1.0, 1)
    assert found.in_use == pytest.approx(whole.in_use, rel=1e-12)


def test_drops_of_a_long_rollout_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, room = drawn_lengths(2048, 100, 512), Room(blocks=40, rows=64)
    whole = occupancy_of([50] * 256, 8, 512, room, lengths)
    monkeypatch.setattr("grpo.rollout.occupancy.MOST_LOOKS", 200)
    found = occupancy_of([50] * 256, 8, 512, room, lengths)
    assert found.most_rows <= whole.most_rows
    assert whole.dropped > 50
    assert found.steps == pytest.approx(whole.steps, rel=0.05)
    assert found.dropped == pytest.approx(whole.dropped, rel=0.3)


def test_many_completions() -> None:
    """Each decision counts: these numbers change with any of them."""
    found = occupancy_of([100] * 64, 8, 2048, Room(blocks=300, rows=512), drawn_lengths(512, 500, 2048))
    assert (found.most_rows, found.steps, found.dropped, found.tokens_again) == (70, 9946, 44, 8268)
    assert found.mean_rows == pytest.approx(28.657148602453248, abs=0)
    assert found.in_use == pytest.approx(0.7755877781687781, rel=1e-12)
