"""A calculator for a small model, in three forms: a task that answers, a tool, and an environment.

grpo sample smollm2 "What is 964 * 494?" --task examples/tools/calculator.py:Products -n 8
grpo train --model smollm2 --task examples/tools/calculator.py:Products --max-new-tokens 48
grpo train --model MODEL --task examples/tools/calculator.py:Questions --tools examples/tools/calculator.py:calculate
grpo train --model MODEL --data rows.jsonl --env examples/tools/calculator.py:Calculator --reward task
"""

import random
import re

from grpo.types import Problem

SYSTEM = "Write a product in brackets and you are told its value."
"""With this line and one worked example SmolLM2-135M calls in 42% of its first turns (64 held-out questions)."""


def calculate(expression: str) -> str:
    """Computes an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, such as 12*34.
    """
    if not re.fullmatch(r"[\d.+\-*/() ]{1,80}", expression) or "**" in expression:
        raise ValueError("an expression has numbers, + - * / and parentheses only")
    return f"{eval(expression):.12g}"  # it holds nothing but numbers and four operators


def bracketed(text: str) -> str | None:
    """The last expression in brackets; None: there is none.

    >>> bracketed("First [3*4], then [12+5]"), bracketed("17")
    ('12+5', None)
    """
    found = re.findall(r"\[([^\[\]]*)\]", text)
    return found[-1] if found else None


class Calculator:
    """Environment: answers every turn that has an expression in brackets. A turn without one ends the episode."""

    def reset(self, **columns: object) -> None:
        """Nothing to begin with: a question and its answer are all there is."""

    def step(self, text: str) -> str | None:
        expression = bracketed(text)
        if expression is None:
            return None
        try:
            return calculate(expression)
        except (ValueError, ArithmeticError, SyntaxError, TypeError) as error:
            return f"error: {error}"


class Questions:
    """Task: products of three digits, which the model cannot compute and a calculator can."""

    name = "questions"

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        rng = random.Random(f"{seed}/{step}")
        return [question(f"{step}/{i}", *pair(rng, heldout=False)) for i in range(count)]

    def heldout(self) -> list[Problem]:
        rng = random.Random("heldout")
        return [question(f"heldout/{i}", *pair(rng, heldout=True)) for i in range(500)]

    def recognise(self, prompt: str) -> Problem | None:
        found = re.search(r"(\d+) ?\* ?(\d+)", prompt)
        return question(prompt, int(found[1]), int(found[2])) if found else None

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        return {"correct": float(self.is_correct(problem, text))}

    def is_correct(self, problem: Problem, text: str) -> bool:
        return re.findall(r"\d+", text)[-1:] == [problem.answer]


class Products(Questions):
    """The same questions, with the calculator as part of the task."""

    name = "products"

    def reply(self, problem: Problem, turns: list[str]) -> str | None:
        return Calculator().step(turns[-1])

    def episode_traits(self, problem: Problem, turns: list[str]) -> dict[str, float]:
        return {"called": float(bracketed(turns[0]) is not None)}


def pair(rng: random.Random, heldout: bool) -> tuple[int, int]:
    """Two factors. One pair in ten is held out."""
    while True:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        if ((7 * a + b) % 10 == 0) == heldout:
            return a, b


def question(name: str, a: int, b: int) -> Problem:
    """The question after one worked example."""
    messages = [
        ("system", SYSTEM),
        ("user", "What is 127 * 683?"),
        ("assistant", "[127*683]"),
        ("user", "86741"),
        ("assistant", "86741"),
        ("user", f"What is {a} * {b}?"),
    ]
    return Problem(
        name, messages[-1][1], str(a * b), messages=tuple({"role": who, "content": text} for who, text in messages)
    )
