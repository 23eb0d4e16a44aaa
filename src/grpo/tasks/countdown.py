"""Countdown: make a target from given numbers with the four operations, using each number exactly once."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice

from grpo.errors import GrpoError
from grpo.tasks.checkers.answers import explicit
from grpo.tasks.split import is_held_out
from grpo.types import Problem, chat

HELDOUT_COUNT = 1000
LONGEST = 200
"""Characters of an expression."""
QUESTION = (
    "Use each of the numbers {numbers} exactly once, with + - * / and parentheses, to make {target}. "
    "Think, then give the expression inside <answer> </answer>."
)


class Countdown:
    """`countdown`: three or four numbers. `countdown:easy`: three.

    >>> task, problem = Countdown(), Problem("p", "", "44+19-35", columns={"numbers": [44, 19, 35], "target": 28})
    >>> [task.score(problem, text)["correct"] for text in ("<answer>19 + (44 - 35)</answer>", "19+44-35=28", "28")]
    [1.0, 1.0, 0.0]
    """

    trusted = True

    def __init__(self, variant: str = ""):
        if variant not in ("", "easy"):
            raise GrpoError(f"field task: countdown has no variant {variant!r}; the only one is countdown:easy")
        self.name = f"countdown:{variant}" if variant else "countdown"
        self.sizes = (3,) if variant else (3, 4)

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return [*islice(self._stream(f"train/{seed}/{step}", f"train/{step}", heldout=False), count)]

    def heldout(self) -> list[Problem]:
        return [*islice(self._stream("heldout", "heldout", heldout=True), HELDOUT_COUNT)]

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return self.why(problem, text)[1] == "right"

    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        return {"unparsed": float(self.why(problem, text)[1] == "not an expression")}

    def why(self, problem: Problem, text: str) -> tuple[str, str]:
        """(expression found, why it is right or wrong)."""
        expression = expression_in(text)
        value = evaluate(expression)
        if value is None:
            return expression, "not an expression"
        if sorted(map(int, re.findall(r"\d+", expression))) != sorted(problem.columns["numbers"]):
            return expression, "not each number exactly once"
        return expression, "right" if value == problem.columns["target"] else f"makes {value}"

    def _stream(self, key: str, prefix: str, heldout: bool) -> Iterator[Problem]:
        """An endless stream of problems, held out or not. Each is made from a solution, so it has one."""
        rng, number = random.Random(f"{self.name}/{key}"), 0
        while True:
            numbers = [rng.randint(1, 99) for _ in range(rng.choice(self.sizes))]
            solution = "".join(f"{rng.choice('+-*')}{n}" if at else str(n) for at, n in enumerate(numbers))
            target = evaluate(solution)
            if target is None or not 0 < target <= 999:
                continue
            shown = sorted(numbers)
            question = QUESTION.format(numbers=", ".join(map(str, shown)), target=target)
            if is_held_out(question) == heldout:
                columns = {"numbers": shown, "target": int(target)}
                yield Problem(f"{prefix}/{number}", question, solution, chat(question), columns)
                number += 1


def expression_in(text: str) -> str:
    """The expression in the last box or answer tag, or else on the last line, without an "= 28" at its end."""
    marked = [candidate for form, candidate in explicit(text[-2000:]) if form in ("box", "tag")]
    lines = text[-2000:].strip().splitlines()[-1:]
    found = (marked or lines or [""])[0].replace(r"\times", "*").replace(r"\div", "/")
    found = found.replace("×", "*").replace("÷", "/")
    return found.replace("−", "-").rpartition("=")[0].strip() if "=" in found else found.strip()


def evaluate(expression: str) -> Fraction | None:
    """The value of an expression of whole numbers, + - * / and parentheses; None for anything else.

    >>> evaluate("19+(44-35)"), evaluate("1/0"), evaluate("9**9"), evaluate("__import__('os')")
    (Fraction(28, 1), None, None, None)
    """
    if len(expression) > LONGEST or not re.fullmatch(r"[\d+*/() -]+", expression) or "**" in expression:
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError, MemoryError):  # border: malformed text
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("not one of the four operations")
