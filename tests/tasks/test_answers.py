"""Answers: the forms models write, the cases on which checkers are known to fail, and what must never hang."""

from __future__ import annotations

import re
import signal
import threading
import weakref
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.tasks.checkers import expressions
from grpo.tasks.checkers.answers import Verdict, check, kind_of
from grpo.tasks.checkers.numbers import read_number
from helpers.answer_cases import LENIENT_ONLY, RIGHT, WRONG

DOCS = Path(__file__).parents[2] / "docs"
formulas = pytest.mark.skipif(not expressions.available(), reason="math-verify is not installed")

LIMITS = [
    # gold, text, what is said, what would be right (None: arguable), why; docs/rewards.md lists the same
    ("50%", "0.5", True, None, "A percent sign is read both ways"),
    ("50 cents", "0.5", True, None, "Cents are read both ways"),
    ("$18", "$18 per day", True, None, "A rate may be left out"),
    ("5 dollars", "5 eggs", True, False, "Nouns are not compared"),
    ("5m", "5", True, False, "A letter after a number is a unit"),
    (r"\frac{1}{2}mg", r"\frac{mg}{2}", False, True, "Letters that spell a unit are one"),
    ("5 kelvin", "5 K", False, True, "Some symbols are not units"),
    ("100 °C", "212 °F", False, True, "Temperatures are not converted"),
    (r"\frac{\pi}{3}", r"60^\circ", False, None, "Degrees are not radians"),
    ("5 km", "3.1 miles", False, None, "Conversions are exact"),
    ("1 year", "52 weeks", False, None, "A year has 12 months or 365 days"),
    ("7:00 pm", "7 pm", False, True, "Times and dates are compared as text"),
    ("18.50", "She paid 18 dollars and 50 cents in all.", False, True, "Two units in free text"),
    ("101_2", "5", False, None, "Another base is another answer"),
    ("2", r"12 \equiv 2 \pmod 5", False, None, "A residue needs its modulus"),
    ("3", "3 quarters", False, None, "Up to three quarters are fourths"),
    ("4", "$4 million", False, None, "A scale word left to the question"),
    ("3", "three apples", False, True, "Number words stand alone"),
    ("3", "III", False, True, "Other number words"),
    ("20,000", "20k", False, True, "Short scales follow a currency"),
    ("3.14", "3,14", False, True, "A decimal comma"),
    ("(1,2)", "m=1, b=2", False, None, "Names are sorted"),
    ("AB", "BA", False, None, "Capital letters are not multiplied"),
    ("my", "ym", True, False, "Short words without vowels are products"),
    (r"\emptyset", "no solution", False, True, "The empty set in other words"),
    ("2^{2000}", "4^{1000}", False, True, "Large formulas"),
    ("18", "I am sure that it is not 18", True, False, "Negation"),
    ("18", "It is 17 or 18", True, False, "Hedging in free text"),
    ("Paris", "It must be Paris", False, True, "Words inside a sentence"),
    ("5", "the answer is more than 5", True, False, "Words around one number"),
    ("3", "3 point five", True, False, "Words around one number"),
    ("5", "5 score", True, False, "Rare scale words"),
    ("3", "3 octillion", True, False, "Rare scale words"),
    ("3", "It is 3 factorial", True, False, "Operations in words"),
    ("5", "5,5", True, False, "A value given twice"),
    ("1/3", "0.333...", False, True, "Dots at the end"),
    ("2:1", "2 to 1", False, True, "Ratios in words"),
]


@formulas
@pytest.mark.parametrize(("gold", "text"), RIGHT)
def test_right_and_strictly_so(gold: str, text: str) -> None:
    verdict = check(text, gold)
    assert verdict.right, verdict
    assert verdict.strict or verdict.form.startswith("last"), verdict


@formulas
@pytest.mark.parametrize(("gold", "text"), LENIENT_ONLY)
def test_right_only_for_a_lenient_reader(gold: str, text: str) -> None:
    verdict = check(text, gold)
    assert (verdict.right, verdict.strict) == (True, False)


@formulas
@pytest.mark.parametrize(("gold", "text"), WRONG)
def test_wrong(gold: str, text: str) -> None:
    assert not check(text, gold).right


@formulas
@pytest.mark.parametrize(("gold", "text", "said", "right", "why"), LIMITS)
def test_known_limits_are_as_the_page_says(gold: str, text: str, said: bool, right: bool, why: str) -> None:
    assert check(text, gold).right is said is not right
    page = (DOCS / "rewards.md").read_text()
    assert f"**{why}.**" in page
    assert f"`{text}`" in page


def test_unparseable_is_not_wrong() -> None:
    assert check("I do not know", "18") == Verdict(False, False, "", "", "no answer found")
    assert check("17", "18").parsed
    assert not check(r"\boxed{10^{10^{10}}}", "10").parsed, "a box that cannot be read, not the last number in it"


def test_a_wrong_number_says_what_differs() -> None:
    golds = {"5 m": "5 cm", "5 km": "5 s", "101_2": "101", "2 mod 5": "2 mod 7"}
    why = [check(text, gold).why for gold, text in golds.items()]
    assert why == ["other number", "other unit", "other base", "other modulus"]


def test_any_of_several_golds_is_right() -> None:
    assert check("NYC", "New York", aliases=["NYC"]).right
    assert not check("LA", "New York", aliases=["NYC"]).right


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{}.", "{}.0", "${}$", "{} km", "x = {}", "#### {}"]))
def test_every_whole_number_is_read_exactly(number: int, form: str) -> None:
    assert check(form.format(number), str(number)).strict
    assert check(form.format(f"{number:,}"), str(number)).strict
    assert not check(form.format(number + 1), str(number)).right


@settings(deadline=None)
@given(st.fractions(max_denominator=999).filter(lambda f: f.denominator > 1))
def test_every_fraction_is_read_exactly(fraction: Fraction) -> None:
    sign = "-" if fraction < 0 else ""
    top, bottom = abs(fraction.numerator), fraction.denominator
    for text in (
        f"{sign}{top}/{bottom}",
        f"{sign}\\frac{{{top}}}{{{bottom}}}",
        f"${sign}\\dfrac{{{top}}}{{{bottom}}}$",
    ):
        assert read_number(text).value == fraction


@settings(deadline=None)
@given(st.text(max_size=300), st.sampled_from(["18", "A", "yes", "Paris", "(1,2)", "x+1"]))
def test_no_text_breaks_it(text: str, gold: str) -> None:
    if expressions.available() or kind_of(gold) != "formula":
        check(text, gold)


HOSTILE = [
    r"\boxed{10^{10^{10}}}",
    "10^{10^{10}}",
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{1000000!}",
    r"\boxed{99999^{99999}}",
    r"\boxed{((2^{999})^{999})^{999}}",
    r"\boxed{" + "(" * 300 + "1" + ")" * 300 + "}",
    "1 " * 20_000,
    r"\boxed{" * 10_000,
    "<answer>" * 10_000,
    "answer is " * 10_000,
    "$" * 50_000,
    "####" * 20_000,
    "1e999999999",
    r"\frac" * 5_000,
    "{" * 50_000,
    r"\boxed{" + "9" * 390 + "}",
    r"\boxed{" + "1/" * 190 + "2}",
    r"\boxed{5 " + "m" * 390 + "}",
    r"\boxed{5 " + "m " * 190 + "}",
    r"\boxed{5 " + "ounces " * 27 + "}",
    r"\boxed{5 " + "million " * 24 + "}",
    r"\boxed{" + "1 m " * 45 + "}",
    "5 m" * 10_000,
    "10^" * 10_000,
    "$1" * 20_000,
    "x=1," * 5_000,
    r"\boxed{1e-400 km^9/ms^9}",
    r"\boxed{" + "z" * 60 + "_{36}}",
    r"\boxed{" + "[" * 21 + "1" + "]" * 21 + "}",
]


@formulas
@pytest.mark.parametrize("gold", ["18", "x+1", "A", "Paris"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_are_refused_before_they_cost_anything(text: str, gold: str, monkeypatch) -> None:
    """No comparison may even reach its time limit: the sizes are refused first."""
    monkeypatch.setattr(expressions, "LIMIT", 60.0)
    asked = []
    monkeypatch.setattr(expressions, "_parse", lambda latex: asked.append(latex))
    assert not check(text, gold).right
    assert all(len(latex) <= expressions.LONGEST and not expressions.explosive(latex) for latex in asked)


@formulas
def test_formulas_are_compared_off_the_main_thread_too() -> None:
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(check(r"\boxed{\sqrt{8}}", r"2\sqrt{2}").right))
    thread.start()
    thread.join()
    assert said == [True]


def test_a_comparison_is_cut_off_and_leaves_other_alarms_alone() -> None:
    fired: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: fired.append(number))
    signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        with pytest.raises(expressions._TimeLimitError), expressions.time_limit(0.01):
            all(iter(lambda: True, False))  # for ever
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 3000 < left <= 3600, "the alarm that was set before goes on"
        assert not fired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_python_ignores_is_followed_by_a_second() -> None:
    """The first ends the callback of a weak reference, whose exceptions are ignored."""
    subject = type("Subject", (), {})()
    reference = weakref.ref(subject, lambda _: all(iter(lambda: True, False)))
    holder = [subject]
    del subject
    with pytest.raises(expressions._TimeLimitError), expressions.time_limit(0.01):
        all(iter(lambda: holder.clear() is None, False))  # for ever
    assert reference() is None


@formulas
def test_time_up_is_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(latex: str) -> None:
        raise expressions._TimeLimitError

    monkeypatch.setattr(expressions, "_parse", late)
    verdict = check(r"\boxed{x+2}", "x+1")
    assert (verdict.right, verdict.parsed) == (False, False)


def test_without_math_verify_numbers_words_and_letters_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "available", lambda: False)
    assert check("#### 18", "18").right
    assert check("The answer is Paris.", "Paris").right
    verdict = check(r"\boxed{\sqrt{324}}", "18")
    assert (verdict.right, verdict.why) == (False, "cannot be compared without math-verify")


def test_the_page_lists_every_limit_of_this_test_and_no_other() -> None:
    section = (DOCS / "rewards.md").read_text().split("## Known limits")[1].split("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\.\*\*", section, re.MULTILINE) == list(dict.fromkeys(why for *_, why in LIMITS))
