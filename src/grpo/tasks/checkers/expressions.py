"""Compares formulas with math-verify, which reads LaTeX without running it.

A short formula can take forever to evaluate: `10^{10^{10}}`. Known cases are refused before they are parsed. Other
comparisons stop after `LIMIT` seconds (by a signal, so only in a process's main thread). The worker pool kills a
process that still hangs.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from typing import Any

from grpo.tasks.checkers.numbers import read_number
from grpo.tasks.checkers.typesetting import plain
from grpo.tasks.checkers.units import Unit, read_unit

SECOND_ALARM = 0.2
"""Seconds after the first one."""
LIMIT = 2.0
"""Seconds for one comparison."""
LONGEST = 300
"""Characters; longer formulas are not compared."""
LARGEST_POWER = 1000
"""Largest exponent or factorial that is evaluated."""
DEEPEST = 20
"""Brackets inside brackets; deeper formulas are not compared."""

EXACTLY = {"float_rounding": 12, "allow_set_relation_comp": True, "timeout_seconds": None}
ENCLOSED = ("()", "[]", "{}", "[)", "(]")
DIFFERENT = {(one, other) for one in ENCLOSED for other in ("", *ENCLOSED) if one != other} - {("{}", "")}
"""(gold, answer): kinds of brackets that never mean the same. A pair is not a set; a bare list may be one."""


class _TimeLimitError(BaseException):
    """A BaseException, because math-verify catches every Exception."""


def equal(gold: str, answer: str) -> bool | None:
    """Whether two formulas are equal; None where the answer cannot be parsed or compared in time. Needs math-verify."""
    if is_empty_set(gold) or is_empty_set(answer):
        return is_empty_set(gold) and is_empty_set(answer)
    (gold, mine), (answer, its) = _measured(gold), _measured(answer)
    if not mine or not its:
        return _equal(prepared(gold), prepared(answer))
    ratios = {ratio for one in mine for two in its if (ratio := one.ratio(two)) is not None}
    scaled = [gold if ratio == 1 else rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}({gold})" for ratio in ratios]
    verdicts = [_equal(prepared(formula), prepared(answer)) for formula in scaled]
    return True in verdicts or (None if None in verdicts else False)


def _equal(gold: str, answer: str) -> bool | None:
    parts, given_parts = MODULUS.split(gold, maxsplit=1), MODULUS.split(answer, maxsplit=1)
    if len(parts) != len(given_parts):
        return False
    if len(parts) == 2:
        pairs = zip(parts, given_parts, strict=True)
        return all(_equal(*(EQUIVALENT.sub("", one).strip(" (){}") for one in pair)) for pair in pairs)
    if (names := assigned(gold)) and (given_names := assigned(answer)):
        return names.keys() == given_names.keys() and all(_equal(names[name], given_names[name]) for name in names)
    return _same(_as_tuple(gold), _as_tuple(answer))


def _same(gold: str, answer: str) -> bool | None:
    if side_by_side(answer):
        return None
    if (brackets(gold), brackets(answer)) in DIFFERENT:
        return False
    wanted, given = _parsed(gold), _parsed(answer)
    if given is None:
        return None
    if wanted is None:
        return False
    try:
        with time_limit(LIMIT):
            return bool(_math_verify().verify([wanted], [given], **EXACTLY))
    except _TimeLimitError:
        return None


EMPTY_SET = re.compile(r"\\(?:varnothing|emptyset)|∅|\\?\{\s*\\?\}|(?:the )?empty set", re.IGNORECASE)
MODULUS = re.compile(r"\(?\s*\\?[pb]?mod(?![A-Za-z])")
EQUIVALENT = re.compile(r"^\s*(?:[A-Za-z]|-?\d+)\s*(?:\\equiv|≡)")
UPRIGHT_UNIT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]+)\}((?:\s*\^\s*\{?-?\d\}?)?)[\s.$]*$")
SPACED_UNIT = re.compile(r"(?<=\s)([A-Za-z]{2,}[A-Za-z/ ]*)((?:\s*\^\s*\{?-?\d\}?)?)$")
ASSIGNMENT = re.compile(r"([A-Za-z])\s*=([^=<>]+)")
ASSIGNED_TUPLE = re.compile(r"\(?\s*([A-Za-z](?:\s*,\s*[A-Za-z])+)\s*\)?\s*=\s*\((.+)\)")


def is_empty_set(text: str) -> bool:
    return EMPTY_SET.fullmatch(plain(text)) is not None


def _measured(text: str) -> tuple[str, tuple[Unit, ...]]:
    """A formula without its unit, and the unit's readings. A letter is a unit only in upright type: `\\text{m}`."""
    number = read_number(text)
    if number and not number.percent and not number.modulus and number.base == 10:
        return rf"\frac{{{number.face.numerator}}}{{{number.face.denominator}}}", number.units
    for pattern, shown in ((UPRIGHT_UNIT, text), (SPACED_UNIT, plain(text))):
        if found := pattern.search(shown):
            units, rest = read_unit((found[1] + found[2]).strip())
            if units and not rest:
                return shown[: found.start()], units
    return text, ()


def assigned(text: str) -> dict[str, str]:
    """The values of a list of assignments to different letters; empty for any other text.

    >>> assigned("x = 1, y=2"), assigned("(x,y)=(1,2)"), assigned("x=1, x=2")
    ({'x': '1', 'y': '2'}, {'x': '1', 'y': '2'}, {})
    """
    if pair := ASSIGNED_TUPLE.fullmatch(text):
        names, values = split(pair[1]), split(pair[2])
    else:
        found = [ASSIGNMENT.fullmatch(part) for part in _listed(text)]
        names, values = [one[1] for one in found if one], [one[2].strip() for one in found if one]
        names = names if len(names) == len(found) else []
    different = 1 < len(names) == len(set(names)) == len(values)
    return dict(zip(names, values, strict=True)) if different else {}


def alternatives(text: str) -> bool:
    """Whether it gives one letter several values.

    >>> alternatives("x=1 or x=2"), alternatives("x=1, y=2"), alternatives("x=6/2=3")
    (True, False, False)
    """
    found = [ASSIGNMENT.fullmatch(part) for part in _listed(re.sub(r"\s+or\s+", ",", text))]
    names = [one[1] for one in found if one]
    return len(names) == len(found) > len(set(names))


def _listed(text: str) -> list[str]:
    return split(re.sub(r"\s+and\s+|;|\\\\", ",", text))


def _as_tuple(text: str) -> str:
    """`(1,2)` for "x=1, y=2", in the order of the alphabet; any other text as it is."""
    values = assigned(text)
    ordered = values if ASSIGNED_TUPLE.fullmatch(text) else sorted(values)
    return f"({','.join(values[name] for name in ordered)})" if values else text


def split(text: str) -> list[str]:
    """The parts between commas outside all brackets.

    >>> split("1, (2, 3)")
    ['1', '(2, 3)']
    """
    parts = [""]
    for character, depth in zip(text, _depths(text), strict=True):
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _depths(text: str) -> list[int]:
    """The number of brackets that are open after each character."""
    return list(accumulate((character in "([{") - (character in ")]}") for character in text))


def brackets(text: str) -> str | None:
    """The kind of brackets around several values, such as "()" of "(1,2)"; "" for none, None for a single value.

    >>> brackets("(1,2)"), brackets(r"\\{1,2\\}"), brackets("[1,2)"), brackets("1,2"), brackets("(x+1)(x+2)")
    ('()', '{}', '[)', '', None)
    """
    text = text.replace(r"\{", "{").replace(r"\}", "}").replace(" ", "")
    depths = _depths(text)
    lowest = min((level for character, level in zip(text, depths, strict=True) if character == ","), default=2)
    if lowest == 0:
        return ""
    enclosed = lowest == 1 and text[0] in "([{" and min(depths[:-1]) > 0
    return text[0] + text[-1] if enclosed else None


def side_by_side(text: str) -> bool:
    r"""Whether two numbers stand next to each other with nothing between them. math-verify adds those, as in 1 1/2.

    >>> [side_by_side(text) for text in ("20 25", "20\n25", "(20)(25)", "20{25}", r"20 \\ 25")]
    [True, True, True, True, True]
    >>> [side_by_side(text) for text in ("1 1/2", r"1 \frac{1}{2}", r"\frac 1 2", "(x-1)(2x+3)", r"2\sqrt{3}", "20")]
    [False, False, False, False, False, False]
    """
    text = re.sub(r"_\s*(?:\{[^{}]*\}|\w)", " ", text)
    text = _replace_nested(COMMAND, "x", text)
    if r"\begin" not in text:  # in a matrix, \\ starts a row
        text = re.sub(r"\\+(?=[\s\d])", " ", text)
    text = _replace_nested(ENCLOSED_NUMBER, r" \1 ", text)
    return re.search(r"\d\s+\d+(?![\d\s]*/)", text) is not None


COMMAND = re.compile(r"\\(?!begin|end)[A-Za-z]+\s*(?:\d+\s+\d+|(?:\{[^{}]*\})+)|\^\s*(?:\{[^{}]*\}|\d)")
ENCLOSED_NUMBER = re.compile(r"(?<![A-Za-z])[({\[]\s*(\d+(?:\.\d+)?)\s*[)}\]](?!\s*[\^A-Za-z])")
"""Not before a power or a letter, where math-verify correctly multiplies: 3(2)^{n-1}."""


def _replace_nested(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Replace until nothing matches: from the innermost brackets outwards."""
    while (after := pattern.sub(replacement, text)) != text:
        text = after
    return text


def prepared(text: str) -> str:
    """LaTeX for text that may be plain: `pi/2`, `sqrt(2)`, `1 <= x < 2`.

    >>> prepared("pi/2"), prepared("3*sqrt(2)"), prepared("1≤x<2")
    ('\\\\pi /2', '3*\\\\sqrt{2}', '[1,2)')
    """
    text = (
        plain(text)
        .replace("$", "")
        .replace("≤", r"\le ")
        .replace("≥", r"\ge ")
        .replace("<=", r"\le ")
        .replace(">=", r"\ge ")
    )
    text = text.replace("π", r"\pi ").replace("∞", r"\infty ").replace("√", r"\sqrt ").replace("^{\\prime}", "'")
    text = re.sub(r"(?<![A-Za-z\\])(pi|infty)(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = text.replace("**", "^")
    chain = re.fullmatch(r"(.+?)\s*(<|\\leq?|\\lt)\s*[A-Za-z]\s*(<|\\leq?|\\lt)\s*([^<]+)", text)
    if chain:
        ends = [("[" if "e" in chain[2] else "("), ("]" if "e" in chain[3] else ")")]
        return f"{ends[0]}{chain[1].strip()},{chain[4].strip()}{ends[1]}"
    return text


def explosive(text: str) -> bool:
    """Whether evaluating it could take forever, or all memory.

    >>> [explosive(text) for text in ("x^{100}", "2^{3^{2}}", "10^{10^{10}}", "9^{9^9}", "1000000!", "2^{9999}")]
    [False, False, True, True, True, True]
    """
    bare = re.sub(r"[\s{}]|\\[,;!]", "", text.replace("**", "^"))
    if re.search(r"!{2}|\d{4,}!|\)!|\)\^\(?[^()]*\)\^", bare):
        return True
    if any(int(power[:6]) > LARGEST_POWER for power in re.findall(r"\^[-(]*(\d+)", bare)):
        return True
    towers = re.findall(r"\^\(?(\d+)\^\(?(\d+)(\^?)", bare)
    return any(more or int(base) ** int(power) > LARGEST_POWER for base, power, more in towers)


def _parsed(latex: str) -> Any:
    if not latex or len(latex) > LONGEST or explosive(latex) or max(_depths(latex)) > DEEPEST:
        return None
    try:
        with time_limit(LIMIT):
            return _parse(latex)
    except _TimeLimitError:
        return None


@lru_cache(maxsize=4096)
def _parse(latex: str) -> Any:
    """The formula as a SymPy object, or None. Cached: golds are parsed again for every completion."""
    library = _math_verify()
    found = library.parse(
        f"${latex}$",
        extraction_config=[library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if found else None


def available() -> bool:
    """Whether math-verify can be imported. It can be installed and still fail: its parser is an extra."""
    return _math_verify() is not None


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError:
        return None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the caller must limit the time
    return math_verify


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise inside the block when the time is up. An alarm that was set earlier continues afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach only the main thread
        return

    # Python ignores an exception that is raised in a weak reference's callback, so there is a second alarm.
    second = [SECOND_ALARM]

    def give_up(number: int, frame: object) -> None:
        if second:
            signal.setitimer(signal.ITIMER_REAL, second.pop())
        raise _TimeLimitError

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, give_up)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - began)), interval)
