"""The task `guess`: its answers, and the win rates of bisection and of guessing at random, computed exactly."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache

import pytest

from grpo.tasks.guess import GUESSES, NUMBERS, PROMPT, Guess
from grpo.types import Problem
from helpers.teachers import games

TASK = Guess()


def game(hidden: int) -> Problem:
    return Problem("p", PROMPT, str(hidden))


def test_guesses_are_answered_until_the_number_is_found_or_four_are_made() -> None:
    assert TASK.reply(game(5), ["7"]) == "<"
    assert TASK.reply(game(5), ["7", "3"]) == ">"
    assert TASK.reply(game(5), ["7", "3", "4"]) == ">"
    assert TASK.reply(game(5), ["7", "3", "5"]) is None
    assert TASK.reply(game(5), ["7", "3", "4", "6"]) is None
    assert [TASK.score(game(5), text)["correct"] for text in ("5", "6", "05", "5 ", "")] == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["", "15", "-1", "07", "7?", "<", " 7", "٧"])
def test_what_is_no_number_of_the_game_ends_it(text: str) -> None:
    assert TASK.reply(game(5), [text]) is None


def test_traits() -> None:
    assert TASK.episode_traits(game(5), ["7", "3", "5"]) == {"possible": 1.0, "middle": 1.0}
    # 0-14: 8 is not the middle; 0-7: 3 and 4 both are; 4-7: 2 is not possible; 4-7: 5 is in the middle.
    assert TASK.episode_traits(game(5), ["8", "3", "2", "5"]) == {"possible": 0.75, "middle": 0.5}
    assert TASK.episode_traits(game(5), ["x"]) == {"possible": 0.0, "middle": 0.0}


def test_typed_games_hide_the_number_that_follows_the_prompt() -> None:
    assert TASK.recognise("0-14?5") == Problem("typed/0-14?5", PROMPT, "5")
    assert TASK.recognise("0-14?") == Problem("typed/0-14?", PROMPT, "10")
    assert [TASK.recognise(prompt) for prompt in ("0-14?15", "0-14?x", "which?", "5")] == [None] * 4


def test_every_number_is_drawn_equally_often() -> None:
    drawn = TASK.draw(3, 30, 1)
    assert Counter(problem.answer for problem in drawn) == {str(number): 2 for number in NUMBERS}
    assert drawn == TASK.draw(3, 30, 1) != TASK.draw(4, 30, 1) != TASK.draw(4, 30, 2)
    assert drawn[:20] == TASK.draw(3, 20, 1)
    assert set(Counter(problem.answer for problem in TASK.draw(0, 16, 1)).values()) == {1, 2}
    assert Counter(problem.answer for problem in TASK.heldout()) == {str(number): 34 for number in NUMBERS}


def test_bisection_finds_every_number() -> None:
    def found(hidden: int) -> bool:
        low, high, turns = NUMBERS[0], NUMBERS[-1], []
        while True:
            turns.append(str((low + high) // 2))
            reply = TASK.reply(game(hidden), turns)
            if reply is None:
                return TASK.is_correct(game(hidden), turns[-1])
            low, high = (low, int(turns[-1]) - 1) if reply == "<" else (int(turns[-1]) + 1, high)

    assert sum(map(found, NUMBERS)) == 15


def test_guessing_any_possible_number_wins_sixty_percent() -> None:
    @cache
    def wins(numbers: int, guesses: int) -> Fraction:
        """Of n numbers, how many are found in the mean, where each guess is one of them at random."""
        if not numbers or not guesses:
            return Fraction(0)
        return Fraction(
            sum(1 + wins(below, guesses - 1) + wins(numbers - 1 - below, guesses - 1) for below in range(numbers)),
            numbers,
        )

    assert float(wins(len(NUMBERS), GUESSES) / len(NUMBERS)) == pytest.approx(0.60, abs=0.005)


def test_the_teacher_guesses_any_possible_number() -> None:
    """In the mean it wins as often as computed above, within three standard errors of 1,000 games."""
    [first] = games("guess", [game(5)])
    assert first.completions[0].turns[-1] == "5" or len(first.completions[0].turns) == GUESSES
    played = games("guess", TASK.draw(0, 1000, 1))
    won = sum(TASK.is_correct(each.problem, each.completions[0].text) for each in played) / len(played)
    assert won == pytest.approx(0.60, abs=0.047)
    for each in played:
        assert TASK.episode_traits(each.problem, each.completions[0].turns)["possible"] == 1.0
