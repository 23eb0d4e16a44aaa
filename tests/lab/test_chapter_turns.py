"""The chapter on several turns: games of the shipped model, their tokens, and exact chances by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grpo.lab.chapters import answer
from grpo.lab.trials.outcome import openings_of
from grpo.lab.trials.recorded import recorded_arms
from grpo.lab.trials.spec import Trial
from grpo.tasks.guess import GUESSES, Guess
from grpo.types import Problem

GAME = {"hidden": "11", "seed": "1", "sample": "3"}


def test_games_follow_the_task() -> None:
    found = answer("turns", "game", GAME)
    problem = Problem("p", found["prompt"], "11")
    for game in found["games"]:
        guesses = [turn["text"] for turn in game["turns"][::2]]
        replies = [Guess().reply(problem, guesses[: place + 1]) for place in range(len(guesses))]
        assert [turn["text"] for turn in game["turns"][1::2]] == replies[:-1]
        assert replies[-1] is None
        assert game["reward"] == float(guesses[-1] == "11")
        assert len(guesses) <= GUESSES
    rewards = np.array([game["reward"] for game in found["games"]])
    advantages = [game["advantage"] for game in found["games"]]
    assert advantages == pytest.approx(rewards - rewards.mean()), "Dr. GRPO: less the mean, not divided"
    assert 0 < rewards.mean() < 1


def test_the_trainers_chances_are_the_samplers() -> None:
    """The probability of each guess, read off the packed episode, and as it was sampled."""
    found = answer("turns", "game", GAME)
    sampled = [token for token in found["tokens"] if token["sampled"]]
    for guess, token in zip(found["guesses"], sampled[::2], strict=True):
        assert guess["text"] == token["text"]
        assert guess["chances"][int(guess["text"])] == pytest.approx(token["probability"], rel=1e-4)
        assert 0.9 < sum(guess["chances"]) <= 1 + 1e-6
    assert [token["text"] for token in sampled[1::2]] == ["end"] * len(found["guesses"])


def test_tokens_that_were_read_have_no_numbers() -> None:
    found = answer("turns", "game", GAME)
    read = [token for token in found["tokens"] if not token["sampled"]]
    assert [token["text"] for token in read] == [guess["reply"] for guess in found["guesses"][:-1]]
    assert all(set(token) == {"text", "sampled"} for token in read)


def test_replies_narrow_what_is_possible() -> None:
    for guess in answer("turns", "game", GAME)["guesses"]:
        assert guess["low"] <= 11 <= guess["high"]


def test_chances_by_hand() -> None:
    """Best play from g finds 1 + min(g, 7) + min(14 − g, 7) of 15; one guess finds one of 15, whichever it is."""
    rows = answer("turns", "strategies", {})["rows"]
    by_hand = [(1 + min(first, 7) + min(14 - first, 7)) / 15 for first in range(15)]
    assert [row["best"] for row in rows] == pytest.approx(by_hand)
    one = answer("turns", "strategies", {"guesses": "1"})
    assert (one["best"], one["possible"]) == pytest.approx((1 / 15, 1 / 15))
    assert {row["possible"] for row in one["rows"]} == {1 / 15}


def test_a_trial_of_guess_has_its_own_model_and_settings() -> None:
    arms = [
        {"label": "guess", "settings": {"task": "guess"}},
        {"label": "nano", "settings": {"task": "arithmetic:easy"}},
    ]
    trial = Trial.of({"arms": arms, "seeds": 1, "steps": 2, "metrics": ["middle_share"]})
    guess, nano = (trial.config(arm, seed=1, folder=Path("runs")) for arm in range(2))
    assert (guess.model, guess.lr, guess.prompts_per_step) == ("guess", 1e-3, 30)
    assert (nano.model, nano.lr) == ("nano", 3e-4)


def test_first_turns_are_counted_by_step() -> None:
    rows = [{"step": 1, "openings": {"7": 3}}, {"step": 2}]
    assert openings_of(rows) == [{"step": 1, "counts": {"7": 3}}]


def test_the_recorded_trial_moves_first_guesses_to_the_middle() -> None:
    """At first about as often as any other numbers; after training nearly always."""
    [arm] = recorded_arms("bisection")
    assert len(arm["openings"]) == 3
    for seed in arm["openings"]:
        first, last = (
            sum(row["counts"].get(str(number), 0) for number in range(5, 10)) / sum(row["counts"].values())
            for row in (seed["rows"][0], seed["rows"][-1])
        )
        assert 0.2 < first < 0.5
        assert last > 0.9
    assert arm["accuracy"]["before"]["mean"] < 0.62
    assert arm["accuracy"]["after"]["mean"] > 0.88
