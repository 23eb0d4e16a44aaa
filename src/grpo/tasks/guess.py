"""A hidden number from 0 to 14 and four guesses, each answered with `<` (it is smaller) or `>` (it is larger).

Bisection finds every number. Guessing any number that is still possible finds it in 60% of the games. Only finding it
is rewarded: nobody tells the model to halve.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from grpo.types import Problem

NUMBERS = range(15)
GUESSES = 4
PROMPT = "0-14?"
GAMES = 34
"""Held-out games of each number."""


class Guess:
    """Each turn is a guess; one that is not a number of the game ends it.

    >>> task = Guess()
    >>> problem = Problem("p", PROMPT, "5")
    >>> task.reply(problem, ["7"]), task.reply(problem, ["7", "3"]), task.reply(problem, ["7", "3", "5"])
    ('<', '>', None)
    >>> task.score(problem, "5"), task.episode_traits(problem, ["7", "3", "5"])
    ({'correct': 1.0}, {'possible': 1.0, 'middle': 1.0})
    """

    name = "guess"
    trusted = True

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        """Every number equally often, as far as `count` allows: games that are easy by luck then weigh the same in
        every step."""
        rng = random.Random(f"guess/train/{seed}/{step}")
        rounds = -(-count // len(NUMBERS))
        numbers = [number for _ in range(rounds) for number in rng.sample(NUMBERS, len(NUMBERS))]
        return [Problem(f"train/{step}/{i}", PROMPT, str(number)) for i, number in enumerate(numbers[:count])]

    def heldout(self) -> list[Problem]:
        """The same games with other sampling noise: there are only as many as numbers."""
        return [Problem(f"heldout/{i}", PROMPT, str(i % len(NUMBERS))) for i in range(GAMES * len(NUMBERS))]

    def recognise(self, prompt: str) -> Problem | None:
        """A typed game: the hidden number may follow the prompt, as in `0-14?5`, and is 10 otherwise."""
        before, asked, typed = prompt.partition(PROMPT)
        known = asked and not before and _number(typed or "10") is not None
        return Problem(f"typed/{prompt}", PROMPT, typed or "10") if known else None

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        guess = _number(turns[-1])
        if guess is None or turns[-1] == problem.answer or len(turns) == GUESSES:
            return None
        return "<" if int(problem.answer) < guess else ">"

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return text == problem.answer

    def episode_traits(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        """Shares of the guesses that the answers leave possible, and that halve what is possible."""
        hidden, low, high = int(problem.answer), NUMBERS[0], NUMBERS[-1]
        possible = middle = 0
        for guess in map(_number, turns):
            if guess is None or not low <= guess <= high:
                continue
            possible += 1
            middle += abs(2 * guess - low - high) <= 1
            low, high = (low, guess - 1) if hidden < guess else (guess + 1, high)
        return {"possible": possible / len(turns), "middle": middle / len(turns)}


def _number(text: str) -> int | None:
    return int(text) if text in map(str, NUMBERS) else None
