"""Advantages from step rewards, by hand from the definition in DeepSeekMath, and beside outcome rewards."""

from __future__ import annotations

import math

import pytest

from grpo.core import process_advantages


def test_normalised_together_and_summed_over_the_steps_to_come() -> None:
    # Two completions of four and three tokens. Steps: tokens 0–1 earn 1, tokens 2–3 earn 0; tokens 0–2 earn 0.5.
    # Of 1, 0, 0.5 the mean is 0.5, the sample std 0.5; z = (1, −1, 0) less the 1e-4.
    z = 0.5 / (0.5 + 1e-4)
    first, second = process_advantages([[1.0, 0.0], [0.5]], [[1, 3], [2]], [4, 3])
    assert first.tolist() == pytest.approx([z - z, z - z, -z, -z])
    assert second.tolist() == pytest.approx([0.0, 0.0, 0.0])


def test_population_std_and_eps() -> None:
    # Of 1, 0, 0.5 the population std is √(0.5 / 3).
    z = 0.5 / (math.sqrt(0.5 / 3) + 0.01)
    first, _ = process_advantages([[1.0, 0.0], [0.5]], [[1, 3], [2]], [4, 3], std="population", std_eps=0.01)
    assert first.tolist() == pytest.approx([0.0, 0.0, -z, -z])


def test_tokens_after_the_last_step_get_nothing_and_later_steps_count_for_earlier_tokens() -> None:
    # Rewards 1, 1, 0, 0: mean 0.5, std √(1/3).
    z = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    first, second = process_advantages([[1.0, 1.0], [0.0, 0.0]], [[0, 2], [1, 2]], [5, 3])
    assert first.tolist() == pytest.approx([2 * z, z, z, 0.0, 0.0])
    assert second.tolist() == pytest.approx([-2 * z, -2 * z, -z])


def test_one_step_at_the_end_is_the_outcome() -> None:
    # Rewards 1, 0, 0, 0 as outcomes: 1.4997 and −0.4999, on every token.
    advantages = process_advantages([[1.0], [0.0], [0.0], [0.0]], [[2], [1], [0], [3]], [3, 2, 1, 4])
    assert [row.tolist() for row in advantages] == [
        pytest.approx([0.75 / 0.5001] * 3),
        *(pytest.approx([-0.25 / 0.5001] * length) for length in (2, 1, 4)),
    ]


def test_no_spread_is_exactly_zero_and_no_steps_are_no_credit() -> None:
    advantages = process_advantages([[0.1, 0.1], [0.1], []], [[0, 1], [1], []], [2, 2, 3])
    assert [row.tolist() for row in advantages] == [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0, 0.0]]
    assert [row.tolist() for row in process_advantages([[], []], [[], []], [1, 2])] == [[0.0], [0.0, 0.0]]
