"""Query parameters of a page: numbers, words and texts, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grpo.config.leaf import shown
from grpo.errors import GrpoError

Query = Mapping[str, str]


def number(query: Query, name: str, default: float, low: float, high: float) -> float:
    """
    >>> number({"beta": "0.1"}, "beta", 0.04, 0, 1), number({}, "beta", 0.04, 0, 1)
    (0.1, 0.04)
    """
    return _within(name, query[name], low, high) if name in query else float(default)


def whole(query: Query, name: str, default: int, low: int, high: int) -> int:
    value = number(query, name, default, low, high)
    if value != int(value):
        raise GrpoError(f"{name}: expected a whole number; got {shown(query[name])}")
    return int(value)


def numbers(
    query: Query, name: str, default: Sequence[float], low: float, high: float, *, least: int, most: int
) -> list[float]:
    """A comma-separated list of numbers.

    >>> numbers({"r": "1,0.5"}, "r", [], 0, 1, least=1, most=8)
    [1.0, 0.5]
    """
    found = [_within(name, text, low, high) for text in query[name].split(",")] if name in query else list(default)
    if not least <= len(found) <= most:
        raise GrpoError(f"{name}: expected {least} to {most} numbers separated by commas; got {len(found)}")
    return found


def word(query: Query, name: str, default: str, choices: Sequence[str]) -> str:
    value = query.get(name, default)
    if value not in choices:
        raise GrpoError(f"{name}: expected one of {', '.join(choices)}; got {shown(value)}")
    return value


def text(query: Query, name: str, default: str, most: int = 2000) -> str:
    value = query.get(name, default)
    if len(value) > most:
        raise GrpoError(f"{name}: at most {most:,} characters; got {len(value):,}")
    return value


def _within(name: str, given: str, low: float, high: float) -> float:
    try:
        value = float(given)
    except ValueError:
        raise GrpoError(f"{name}: expected a number; got {shown(given)}") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise GrpoError(f"{name}: must be between {low:g} and {high:g}; got {shown(given)}")
    return value
