"""Two numbers to add, asked in a sentence: a first task for instruction-tuned models, and a benchmark."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from grpo.errors import GrpoError
from grpo.tasks.split import is_held_out
from grpo.types import Problem, chat

HELDOUT_COUNT = 500


class Addition:
    """`addition`: two numbers of two digits; `addition:5`: of five. The last number in the text is the answer.

    >>> task = Addition()
    >>> problem = task.recognise("What is 17 + 25? Answer with just the number.")
    >>> task.score(problem, "17 + 25 = 42"), task.score(problem, "It is 41.")
    ({'correct': 1.0}, {'correct': 0.0})
    """

    trusted = True

    def __init__(self, variant: str = ""):
        if not re.fullmatch(r"|[1-9]|1\d", variant):
            raise GrpoError(f"field task: addition has no variant {variant!r}; give the digits, 1 to 19: addition:3")
        self.digits = int(variant or 2)
        self.name = f"addition:{self.digits}" if variant else "addition"

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        pairs = islice(self._pairs(f"train/{seed}/{step}", heldout=False), count)
        return [_problem(f"train/{step}/{i}", *pair) for i, pair in enumerate(pairs)]

    def heldout(self) -> list[Problem]:
        distinct = dict.fromkeys(islice(self._pairs("heldout", heldout=True), 3 * HELDOUT_COUNT))
        return [_problem(f"heldout/{i}", *pair) for i, pair in enumerate(islice(distinct, HELDOUT_COUNT))]

    def recognise(self, prompt: str) -> Problem | None:
        known = re.search(r"(\d+) ?\+ ?(\d+)", prompt)
        return _problem(f"typed/{prompt}", int(known[1]), int(known[2])) if known else None

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return re.findall(r"-?\d+", text)[-1:] == [problem.answer]

    def _pairs(self, key: str, heldout: bool) -> Iterator[tuple[int, int]]:
        """An endless stream of pairs, held out or not."""
        rng = random.Random(f"{self.name}/{key}")
        low, high = (0 if self.digits == 1 else 10 ** (self.digits - 1)), 10**self.digits - 1
        while True:
            pair = rng.randint(low, high), rng.randint(low, high)
            if is_held_out(f"{pair[0]}+{pair[1]}") == heldout:
                yield pair


def _problem(name: str, a: int, b: int) -> Problem:
    question = f"What is {a} + {b}? Answer with just the number."
    return Problem(name, question, str(a + b), messages=chat(question))
