"""What a reader's sliders said: numbers, whole numbers, choices and lists out of an address."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grpo.errors import GrpoError

Query = Mapping[str, str]


def number(query: Query, name: str, default: float, low: float, high: float) -> float:
    """
    >>> number({"beta": "0.1"}, "beta", 0.04, 0.0, 1.0), number({}, "beta", 0.04, 0.0, 1.0)
    (0.1, 0.04)
    """
    return _number(name, query[name], low, high) if name in query else default


def whole(query: Query, name: str, default: int, low: int, high: int) -> int:
    if name not in query:
        return default
    value = _number(name, query[name], low, high)
    if value != int(value):
        raise GrpoError(f"{name}: {query[name][:40]!r} is no whole number")
    return int(value)


def choice(query: Query, name: str, default: str, choices: Sequence[str]) -> str:
    text = query.get(name, default)
    if text not in choices:
        raise GrpoError(f"{name}: no choice {text[:40]!r}; there are {', '.join(choices)}")
    return text


def numbers(
    query: Query, name: str, default: Sequence[float], low: float, high: float, *, least: int = 1, most: int = 64
) -> list[float]:
    """
    >>> numbers({"rewards": "1,0,0.5"}, "rewards", [], 0.0, 1.0)
    [1.0, 0.0, 0.5]
    """
    if name not in query:
        return list(default)
    texts = query[name].split(",")
    if not least <= len(texts) <= most:
        raise GrpoError(f"{name}: {len(texts)} numbers; give {least} to {most}, commas between")
    return [_number(name, text, low, high) for text in texts]


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise GrpoError(f"{name}: {text[:40]!r} is no number") from None
    if not math.isfinite(value) or not low <= value <= high:
        raise GrpoError(f"{name}: {text[:40]} lies outside {low:g} to {high:g}")
    return value
