"""Equality of formulas, by math-verify, which reads LaTeX without running it.

It can take for ever: `10^{10^{10}}` is twelve characters. What is bound to is refused before it is read, the rest is
cut off after `LIMIT` seconds where a signal can do it (a process's main thread), and a scoring process that hangs all
the same is killed by its pool.
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
from importlib.util import find_spec
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.checkers.numbers import plain

LIMIT = 2.0
"""Seconds for one comparison."""
LONGEST = 300
"""Characters of a formula that is looked at."""
LARGEST_POWER = 1000
"""Largest exponent or factorial that is worked out."""

EXACTLY = {"float_rounding": 12, "allow_set_relation_comp": True, "timeout_seconds": None}
ENCLOSED = ("()", "[]", "{}", "[)", "(]")
DIFFERENT = {(one, other) for one in ENCLOSED for other in ("", *ENCLOSED) if one != other} - {("{}", "")}
"""Brackets of a gold and of an answer that cannot mean the same: a pair is no set. A bare list may stand for a set."""


class _TooLongError(BaseException):
    """Not an Exception, because math-verify swallows those."""


def equal(gold: str, answer: str) -> bool | None:
    """Whether two formulas mean the same; None where the answer cannot be read, or not in time."""
    gold, answer = prepared(gold), prepared(answer)
    if side_by_side(answer):
        return None
    if (brackets(gold), brackets(answer)) in DIFFERENT:
        return False
    wanted, given = _parsed(gold), _parsed(answer)
    if given is None:
        return None
    if wanted is None:
        return False
    from math_verify import verify

    try:
        with time_limit(LIMIT):
            return bool(verify([wanted], [given], **EXACTLY))
    except _TooLongError:
        return None


def brackets(text: str) -> str | None:
    """The kind of brackets around several values, as in "(1,2)"; "" where they have none, None for a single value.

    >>> brackets("(1,2)"), brackets(r"\\{1,2\\}"), brackets("[1,2)"), brackets("1,2"), brackets("(x+1)(x+2)")
    ('()', '{}', '[)', '', None)
    """
    text = text.replace(r"\{", "{").replace(r"\}", "}").replace(" ", "")
    depths, depth = [], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        depths.append(depth)
    lowest = min((level for character, level in zip(text, depths, strict=True) if character == ","), default=2)
    if lowest == 0:
        return ""
    enclosed = lowest == 1 and text[0] in "([{" and min(depths[:-1]) > 0
    return text[0] + text[-1] if enclosed else None


def side_by_side(text: str) -> bool:
    r"""Whether numbers stand beside each other with nothing between: math-verify would add them, as in 1 1/2.

    >>> [side_by_side(text) for text in ("20 25", "20\n25", "(20)(25)", "20{25}", r"20 \\ 25")]
    [True, True, True, True, True]
    >>> [side_by_side(text) for text in ("1 1/2", r"1 \frac{1}{2}", r"\frac 1 2", "(x-1)(2x+3)", r"2\sqrt{3}", "20")]
    [False, False, False, False, False, False]
    """
    text = re.sub(r"_\s*(?:\{[^{}]*\}|\w)", " ", text)
    text = _until_it_stays(COMMAND, "x", text)
    if r"\begin" not in text:  # in a matrix it begins a row
        text = re.sub(r"\\+(?=[\s\d])", " ", text)
    text = _until_it_stays(ENCLOSED_NUMBER, r" \1 ", text)
    return re.search(r"\d\s+\d+(?![\d\s]*/)", text) is not None


COMMAND = re.compile(r"\\(?!begin|end)[A-Za-z]+\s*(?:\d+\s+\d+|(?:\{[^{}]*\})+)|\^\s*(?:\{[^{}]*\}|\d)")
ENCLOSED_NUMBER = re.compile(r"(?<![A-Za-z])[({\[]\s*(\d+(?:\.\d+)?)\s*[)}\]](?!\s*[\^A-Za-z])")
"""Before a power or a letter, math-verify multiplies, and rightly: 3(2)^{n-1}."""


def _until_it_stays(pattern: re.Pattern[str], by: str, text: str) -> str:
    """From the innermost brackets outwards."""
    while (after := pattern.sub(by, text)) != text:
        text = after
    return text


def prepared(text: str) -> str:
    """LaTeX of what may be plain text: `pi/2`, `sqrt(2)`, `1 <= x < 2`.

    >>> prepared("pi/2"), prepared("3*sqrt(2)"), prepared("1≤x<2")
    ('\\\\pi /2', '3*\\\\sqrt{2}', '[1,2)')
    """
    text = plain(text).replace("≤", r"\le ").replace("≥", r"\ge ").replace("<=", r"\le ").replace(">=", r"\ge ")
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
    """Whether working it out might take for ever, or all memory.

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
    if not latex or len(latex) > LONGEST or explosive(latex):
        return None
    try:
        with time_limit(LIMIT):
            return _parse(latex)
    except _TooLongError:
        return None


@lru_cache(maxsize=4096)
def _parse(latex: str) -> Any:
    """The formula as a SymPy object, or None; golds come again and again."""
    parse, config = _math_verify()
    found = parse(f"${latex}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def available() -> bool:
    return find_spec("math_verify") is not None


@lru_cache(maxsize=1)
def _math_verify() -> tuple[Any, Any]:
    try:
        from math_verify import LatexExtractionConfig, parse
    except ImportError:
        raise GrpoError(
            "checking formulas needs math-verify: pip install 'grpo-lab[tasks]' (answers that are numbers, words or "
            "letters are checked without it)"
        ) from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that timeouts are ours to keep
    return parse, LatexExtractionConfig()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises out of the block when the time is up. An alarm that was set before goes on afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal reaches a thread
        return

    def give_up(number: int, frame: object) -> None:
        raise _TooLongError

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
