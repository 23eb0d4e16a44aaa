"""Made-up answers that `grpo check` tries on a task: golds in usual forms, junk, and tricks a policy might find."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from grpo.tasks.checkers.numbers import read_number
from grpo.types import Problem

Answer = tuple[Problem, str]

FORMS: dict[str, str] = {
    "bare": "{gold}",
    "sentence": "The answer is {gold}.",
    "label": "**Answer:** {minus}",
    "box": r"\boxed{{{gold}}}",
    "hashes": "#### {gold}",
    "tag": "<answer>{gold}</answer>",
    "dollars": "The answer is ${gold}.",
    "escaped dollars": r"The answer is \${gold}",
    "box with unit": r"\boxed{{{gold} \text{{ dollars}}}}",
    "unit": "{gold} dollars",
    "decimals": "{gold}.00",
    "LaTeX thousands": "${thousands}$",
}
"""Twelve usual forms of an answer in text."""
ALL_FORMS = {**FORMS, "fenced block": "```\n{gold}\n```"}
FOR_NUMBERS = frozenset({"dollars", "escaped dollars", "box with unit", "unit", "decimals", "LaTeX thousands"})
"""Forms of golds that are whole numbers."""
FOR_CODE = frozenset({"bare", "sentence", "fenced block"})
"""Forms of golds that are programs: each run of one costs a process."""
JUNK = ("", " ", "x", "I do not know.", "!!!", "lorem ipsum dolor sit amet", "<answer></answer>", r"\boxed{}", "####")


def in_form(problems: Sequence[Problem], form: str) -> list[Answer]:
    """The gold answers in this form, of the problems that it fits."""
    pairs = []
    for problem in problems:
        gold = problem.answer.strip()
        number = read_number(gold)
        whole = number is not None and number.value.denominator == 1
        if not _fits(form, problem, is_whole=whole and re.fullmatch(r"-?[\d,]+", gold) is not None):
            continue
        words = {"gold": gold, "minus": gold.replace("-", "−", 1) if number else gold, "thousands": gold}
        if number and whole:
            words["thousands"] = f"{int(number.value):,}".replace(",", "{,}")
        pairs.append((problem, ALL_FORMS[form].format(**words)))
    return pairs


def _fits(form: str, problem: Problem, is_whole: bool) -> bool:
    if "```" in problem.prompt:  # the task asks for a program in a fenced block
        return form in FOR_CODE
    return form != "fenced block" and (is_whole or form not in FOR_NUMBERS)


def junk_for(problems: Sequence[Problem]) -> list[Answer]:
    """Texts without an answer."""
    return [(problem, text) for problem in problems for text in JUNK if text.strip() != problem.answer]


def tricks_for(problems: Sequence[Problem], seed: int) -> dict[str, list[Answer]]:
    """Answers that a policy might find to earn a reward without solving anything."""
    golds = [problem.answer for problem in problems]
    commonest = Counter(golds).most_common(1)[0][0]
    rng = random.Random(seed)

    def others(problem: Problem) -> str:
        return " ".join(
            rf"\boxed{{{gold}}}" for gold in rng.sample(golds, min(20, len(golds))) if gold != problem.answer
        )

    tricks: dict[str, Callable[[Problem], str]] = {
        "the prompt again": lambda problem: problem.prompt,
        "every digit": lambda problem: "0 1 2 3 4 5 6 7 8 9",
        "every letter, yes and no": lambda problem: "A B C D E yes no",
        "twenty other golds in boxes": others,
        "always the commonest gold": lambda problem: f"The answer is {commonest}.",
        "the gold, then another number": lambda problem: f"{problem.answer} or maybe 123456789.5",
        "the gold inside nonsense": lambda problem: f"lorem ipsum {problem.answer} dolor sit amet",
    }
    return {name: [(problem, text(problem)) for problem in problems] for name, text in tricks.items()}
