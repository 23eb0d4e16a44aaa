"""Generated pairs of a gold answer and a completion: each gets a verdict, in bounded time."""

from __future__ import annotations

from random import Random

import pytest

from grpo.tasks.checkers.answers import Verdict, check, kind_of
from helpers.fuzz import Fuzz, budget, odd_text

COUNT = budget(5_200)
UNITS = ("cm", "km", "miles", "dollars", "%", r"\%", "°", r"^\circ", "kg", "million", "dozen", r"\text{ m}", "€")
COMMANDS = (
    r"\frac",
    r"\sqrt",
    r"\text",
    r"\boxed",
    r"\left(",
    r"\right)",
    r"\pi",
    r"\infty",
    r"\cup",
    r"\begin{pmatrix}",
)
SYMBOLS = (*"+-*/^_=<,;:()[]{}!|x", r"\le ", r"\{")
WORDS = ("yes", "no", "A", "(B)", "C.", "Paris", "the cat", "x", "pi", "3:4", "2-1", "None", "∅", r"\emptyset")
LISTS = (("(", ",", ")"), ("[", ", ", ")"), (r"\{", ",", r"\}"), ("", " + ", ""), ("", "=", ""))
FORMULAS = (r"\frac{{{0}}}{{{1}}}", r"\sqrt[{0}]{{{1}}}", "({0})({1})", "{0}^{{{1}}}", "x^{0}+{1}y", r"{0}\cup {1}")
WRAPPINGS = (
    *("{}", "{}", r"\boxed{{{}}}", "#### {}", "<answer>{}</answer>", "The answer is {}.", "so {}", "${}$", "x = {}"),
    *("**{}**", "Answer: {} because I said so", "{0} or {0}", "first 3, then {}\n", r"\[{}\]", "<answer>{}"),
    *(r"\boxed{{{}", "{}?", "not {}"),
)
ODD = ("(" * 500, "{" * 300 + "1" + "}" * 300, "1+" * 200 + "1", "^2" * 100)


def number(rng: Random) -> str:
    whole = rng.choice((rng.randint(-9, 9), rng.randint(-(10**6), 10**6), 10 ** rng.randint(0, 60), 0))
    forms = (
        str(whole),
        f"{whole:,}",
        f"{whole}.{rng.randint(0, 999)}",
        f"{whole}/{rng.randint(-3, 30)}",
        rf"\frac{{{whole}}}{{{rng.randint(0, 9)}}}",
        f"{whole} {rng.randint(1, 9)}/{rng.randint(1, 9)}",
        f"{whole}e{rng.randint(-400, 400)}",
        rf"{rng.randint(1, 9)}.{rng.randint(0, 99)} \times 10^{{{rng.randint(-99, 99)}}}",
        f"{whole}^{rng.randint(0, 10**6)}",
        f"{abs(whole)}!",
        f"{whole}_{rng.randint(2, 16)}",
        rf"{whole} \mod {rng.randint(0, 9)}",
        f"${whole}",
        f"{whole}{rng.choice(UNITS)}",
        f"{whole} {rng.choice(UNITS)}",
        rf"\sqrt{{{whole}}}",
        "9" * rng.randint(1, 500),
    )
    return rng.choice(forms)


def answer(rng: Random, depth: int = 2) -> str:
    """A number, a word, a formula of several parts, or symbols in any order."""
    kind = rng.randrange(8)
    if kind < 4 or not depth:
        return number(rng)
    if kind == 4:
        return rng.choice(WORDS)
    if kind == 5:
        opening, between, closing = rng.choice(LISTS)
        return opening + between.join(answer(rng, depth - 1) for _ in range(rng.randint(2, 4))) + closing
    if kind == 6:
        return rng.choice(FORMULAS).format(answer(rng, depth - 1), answer(rng, depth - 1))
    return "".join(rng.choice((*COMMANDS, *SYMBOLS, str(rng.randint(0, 99)))) for _ in range(rng.randint(1, 12)))


def odd(rng: Random) -> str:
    return odd_text(rng) if rng.random() < 0.5 else rng.choice(ODD)


def judged(rng: Random) -> None:
    gold = answer(rng) if rng.random() < 0.9 else odd(rng).strip() or "0"
    given = gold if rng.random() < 0.2 else answer(rng) if rng.random() < 0.9 else odd(rng)
    text = rng.choice(WRAPPINGS).format(given)
    aliases = tuple(answer(rng) for _ in range(rng.choice((0, 0, 0, 2))))
    assert kind_of(gold) in ("number", "formula", "choice", "words")
    verdict = check(text, gold, aliases)
    assert isinstance(verdict, Verdict)
    assert verdict.right or not verdict.strict
    assert verdict.parsed or not verdict.right
    assert verdict.why
    if rng.random() < 0.1:
        assert check(text, gold, aliases) == verdict


# The time may be up inside a weak reference's callback, where Python ignores exceptions; a second alarm follows.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_every_answer_gets_a_verdict() -> None:
    fuzz = Fuzz("answers", "")
    for at, rng in fuzz.inputs(COUNT):
        fuzz.call(at, lambda rng=rng: judged(rng))
    fuzz.report(at_least=COUNT)
