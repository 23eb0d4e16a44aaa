"""Products of two-digit numbers, with a calculator that the model may call.

The model answers at once, `4042`, which a small network almost never gets right, or calls the calculator, `[47*86]`,
reads `4042;` and goes on. A call computes one operation: the sum of two products takes three. Only the final answer is
rewarded: nobody tells the model that calling helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from grpo.tasks.split import is_held_out
from grpo.types import Problem

HELDOUT_COUNT = 1000
LARGEST = 9999
"""Largest answer: an episode that calls the calculator three times then has at most 48 tokens."""


class Calculator:
    """A product, or the sum of two. A turn in square brackets is a call; any other turn is the answer.

    >>> task = Calculator()
    >>> problem = task.recognise("47*86+12*34=")
    >>> [task.reply(problem, [turn]) for turn in ("[47*86]", "[4042+408]", "4450")]
    ['4042;', '4450;', None]
    >>> task.score(problem, "4450"), task.episode_traits(problem, ["[47*86]", "4042"])
    ({'correct': 1.0}, {'called': 1.0})
    """

    name = "calculator"
    trusted = True

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        prompts = islice(_prompts(f"train/{seed}/{step}", heldout=False), count)
        return [_problem(f"train/{step}/{i}", prompt) for i, prompt in enumerate(prompts)]

    def heldout(self) -> list[Problem]:
        distinct = dict.fromkeys(islice(_prompts("heldout", heldout=True), 3 * HELDOUT_COUNT))
        return [_problem(f"heldout/{i}", prompt) for i, prompt in enumerate(islice(distinct, HELDOUT_COUNT))]

    def recognise(self, prompt: str) -> Problem | None:
        known = re.fullmatch(r"[0-9]{2}\*[0-9]{2}(\+[0-9]{2}\*[0-9]{2})?=", prompt)
        return _problem(f"typed/{prompt}", prompt) if known else None

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        call = re.fullmatch(r"\[([0-9]{1,5})([+*])([0-9]{1,5})\]", turns[-1])
        if not call:
            return None
        a, b = int(call[1]), int(call[3])
        return f"{a * b if call[2] == '*' else a + b};"

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return text == problem.answer

    def episode_traits(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        return {"called": float(self.reply(problem, turns[:1]) is not None)}


def _prompts(key: str, heldout: bool) -> Iterator[str]:
    """An endless stream of prompts, held out or not; half are sums of two products."""
    rng = random.Random(f"calculator/{key}")
    while True:
        products = [(rng.randint(12, 99), rng.randint(12, 99)) for _ in range(rng.randint(1, 2))]
        prompt = "+".join(f"{a}*{b}" for a, b in products) + "="
        if sum(a * b for a, b in products) <= LARGEST and is_held_out(prompt) == heldout:
            yield prompt


def _problem(name: str, prompt: str) -> Problem:
    products = (product.split("*") for product in prompt.rstrip("=").split("+"))
    return Problem(name, prompt, str(sum(int(a) * int(b) for a, b in products)))
