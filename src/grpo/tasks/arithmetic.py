"""Sums of several numbers and products of two, too serial for a small network to answer in one token.

An answer is direct, `260`, or worked digit by digit inside parentheses, `(7,12,18,20;2,5,13,17,26)260`. Only the final
answer is rewarded: nobody tells the model that working helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from grpo.errors import GrpoError
from grpo.tasks.split import is_held_out
from grpo.types import Problem

HELDOUT_COUNT = 1000


class Arithmetic:
    """`arithmetic`: four two-digit numbers to add, or two to multiply. `arithmetic:easy`: three to add.

    >>> task = Arithmetic()
    >>> problem = Problem("p", "37+85+46+92=", "260")
    >>> task.score(problem, "(7,12,18,20;2,5,13,17,26)260"), task.traits(problem, "260")
    ({'correct': 1.0}, {'worked': 0.0})
    """

    trusted = True

    def __init__(self, variant: str = ""):
        if variant not in ("", "easy"):
            raise GrpoError(f"field task: arithmetic has no variant {variant!r}; the only one is arithmetic:easy")
        self.easy = variant == "easy"
        self.name = "arithmetic:easy" if self.easy else "arithmetic"

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        prompts = self._prompts(f"train/{seed}/{step}", heldout=False)
        return [
            Problem(f"train/{step}/{i}", prompt, _answer(prompt)) for i, prompt in enumerate(islice(prompts, count))
        ]

    def heldout(self) -> list[Problem]:
        distinct = dict.fromkeys(islice(self._prompts("heldout", heldout=True), 3 * HELDOUT_COUNT))
        prompts = islice(distinct, HELDOUT_COUNT)
        return [Problem(f"heldout/{i}", prompt, _answer(prompt)) for i, prompt in enumerate(prompts)]

    def recognise(self, prompt: str) -> Problem | None:
        known = re.fullmatch(r"\d+(\+\d+)+=|\d+\*\d+=", prompt)
        return Problem(f"typed/{prompt}", prompt, _answer(prompt)) if known else None

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return final_answer(text) == problem.answer

    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        return {"worked": float("(" in text)}

    def steps(self, problem: Problem, text: str) -> list[tuple[int, float]]:
        """(end in the text, 1 if right) of every number of the work, and of the final answer.

        >>> Arithmetic("easy").steps(Problem("p", "37+85+46=", "168"), "(18;17)168")
        [(4, 1.0), (7, 0.0), (10, 1.0)]
        """
        worked, closed, answer = text.rpartition(")")
        expected = re.split("[,;]", work(problem.prompt).strip("()"))
        found = list(re.finditer(r"[^(,;)]+[,;)]?", worked + closed))
        right = [i < len(expected) and piece.group().rstrip(",;)") == expected[i] for i, piece in enumerate(found)]
        marked = [(piece.end(), float(is_right)) for piece, is_right in zip(found, right, strict=True)]
        return [*marked, (len(text), float(answer.strip() == problem.answer))]

    def extract(self, text: str) -> str:
        """The part of the text that is compared with the answer."""
        return final_answer(text)

    def _prompts(self, key: str, heldout: bool) -> Iterator[str]:
        """An endless stream of prompts, held out or not."""
        rng = random.Random(f"{self.name}/{key}")
        while True:
            if self.easy or rng.random() < 0.5:
                prompt = "+".join(str(rng.randint(10, 99)) for _ in range(3 if self.easy else 4)) + "="
            else:
                prompt = f"{rng.randint(12, 99)}*{rng.randint(12, 99)}="
            if is_held_out(prompt) == heldout:
                yield prompt


def final_answer(text: str) -> str:
    """The text after the last closing parenthesis; the whole text where there is none."""
    return text.rpartition(")")[2].strip()


def _answer(prompt: str) -> str:
    if "*" in prompt:
        a, b = map(int, prompt.rstrip("=").split("*"))
        return str(a * b)
    return str(sum(map(int, prompt.rstrip("=").split("+"))))


def work(prompt: str) -> str:
    """The work for a prompt, as the embedded models saw it in fine-tuning.

    A sum: running sums of the ones, then of the tens, starting with the carry.

    >>> work("37+85+46+92=")
    '(7,12,18,20;2,5,13,17,26)'

    A sum of three: only the two totals, 7+5+6 and 1+3+8+4.

    >>> work("37+85+46=")
    '(18;16)'

    A product: each digit of the second number times the first, ones before tens (6*7=42, 6*4+4=28; 8*7=56, 8*4+5=37),
    then the columns of 282 + 3760 with their carries.

    >>> work("47*86=")
    '(42,28;56,37;2,14,10,4)'
    """
    if "*" in prompt:
        rows = _product_work(*map(int, prompt.rstrip("=").split("*")))
    else:
        numbers = [int(number) for number in prompt.rstrip("=").split("+")]
        ones = _running([number % 10 for number in numbers])
        tens = _running([ones[-1] // 10, *(number // 10 for number in numbers)])
        rows = [ones, tens] if len(numbers) > 3 else [ones[-1:], tens[-1:]]
    return "(" + ";".join(",".join(map(str, row)) for row in rows) + ")"


def _running(numbers: list[int]) -> list[int]:
    return [sum(numbers[: i + 1]) for i in range(len(numbers))]


def _product_work(a: int, b: int) -> list[list[int]]:
    ones, tens = (_digit_times(b % 10, a), _digit_times(b // 10, a))
    carry, columns = 0, []
    for x, y in zip(_digits(b % 10 * a), _digits(b // 10 * a * 10), strict=True):
        columns.append(x + y + carry)
        carry = columns[-1] // 10
    return [ones, tens, columns]


def _digit_times(digit: int, number: int) -> list[int]:
    low = digit * (number % 10)
    return [low, digit * (number // 10) + low // 10]


def _digits(number: int) -> list[int]:
    """Four digits, ones first."""
    return [number // 10**place % 10 for place in range(4)]
