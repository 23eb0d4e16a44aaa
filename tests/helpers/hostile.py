"""Return values of reward functions: sound ones, odd ones, and objects whose every method misbehaves."""

from __future__ import annotations

import array
import collections
import decimal
import fractions
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def _raises(error: BaseException) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise error

    return method


METHODS = ("__len__", "__float__", "__eq__", "__repr__", "__iter__", "__bool__", "__getitem__", "__hash__", "__index__")
ERRORS = (ValueError("no"), RecursionError(), KeyError("a\nb"), SystemExit(3), MemoryError(), OverflowError("large"))
RETURNS = (None, -1, 10**30, "text", float("nan"), [], b"\xff", "a\nb" * 500)


def hostile(rng: random.Random) -> Any:
    """An object of a class of which one to three methods raise, or return something else than they should."""
    methods: dict[str, Any] = {}
    for name in rng.sample(METHODS, rng.randint(1, 3)):
        wrong = rng.choice(RETURNS)
        raises = rng.random() < 0.5 or name == "__getitem__"  # which must raise, or the object is a list without an end
        methods[name] = _raises(rng.choice(ERRORS)) if raises else lambda *_, wrong=wrong: wrong
    if rng.random() < 0.2:
        methods["__getattr__"] = _raises(rng.choice(ERRORS)) if rng.random() < 0.5 else lambda self, name: self
    if rng.random() < 0.2:
        methods["shape"] = property(_raises(rng.choice(ERRORS)))
    base = rng.choice((object, object, object, float, int, list, dict, str))
    return type("Hostile", (base,), methods)()


class Liar(list):
    """A list whose length is not the number of its items."""

    def __len__(self) -> int:
        return 99


SCALARS: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.random(),
    lambda rng: rng.choice((0, 1, -3, True, False, None, 2**64, 10**400, -(10**400))),
    lambda rng: rng.choice((float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e19, 1e20, 1e39, 1e200, 1.7e308)),
    lambda rng: rng.choice((np.float16, np.float32, np.float64, np.longdouble, np.int8, np.uint64, np.bool_))(1),
    lambda rng: rng.choice((np.float32("inf"), np.float64("nan"), np.complex64(1j), np.datetime64("2024-01-01"))),
    lambda rng: torch.tensor(rng.choice((0.5, 1, True, float("nan"), float("inf"), 1e30)), requires_grad=False),
    lambda rng: rng.choice((torch.tensor(1.0, requires_grad=True), torch.tensor([2.0]), torch.tensor([[3]]))),
    lambda rng: rng.choice((torch.tensor([]), torch.tensor(1.0, device="meta"), torch.tensor(1j), torch.ones(2))),
    lambda rng: decimal.Decimal(rng.choice(("0.1", "1e999999", "NaN", "sNaN", "-Infinity", "1" * 50))),
    lambda rng: fractions.Fraction(rng.choice((1, 10**500, -7)), rng.choice((3, 10**500, 1))),
    lambda rng: rng.choice(("1.0", "", "nan", b"1", bytearray(b"x"), "\ud800", "a\nb", "x" * 5000)),
    lambda rng: rng.choice(
        (1j, object(), type, len, ..., NotImplemented, range(3), {1.0}, {"a": 1.0}, [1.0], (), [[]])
    ),
    lambda rng: np.array(rng.choice((1.0, [1.0], [[1.0, 2.0]], "x", None)), dtype=rng.choice((None, object))),
    hostile,
    hostile,
)


def scalar(rng: random.Random) -> Any:
    """A value for one completion, sound or not."""
    return rng.choice(SCALARS)(rng)


def values(rng: random.Random, count: int) -> Any:
    """A function's return value for so many completions, sound or not."""
    length = count if rng.random() < 0.8 else rng.choice((0, count - 1, count + 1, 1000))
    items = [rng.random() if rng.random() < 0.6 else scalar(rng) for _ in range(max(0, length))]
    numbers = [rng.choice((0.5, 1.0, float("nan"), -2.0)) for _ in items]
    makers: tuple[Callable[[], Any], ...] = (
        lambda: items,
        lambda: items,
        lambda: items,
        lambda: tuple(items),
        lambda: iter(items),
        lambda: (item for item in items),
        lambda: map(float, items),
        lambda: np.array(numbers, dtype=rng.choice((np.float32, np.float64, object))),
        lambda: np.array(numbers).reshape(rng.choice(((-1, 1), (1, -1), (-1,)))),
        lambda: torch.tensor(numbers, requires_grad=rng.random() < 0.5),
        lambda: torch.tensor(numbers).reshape(-1, 1),
        lambda: array.array("d", numbers),
        lambda: collections.deque(items),
        lambda: dict(enumerate(items)),
        lambda: {"rewards": items},
        lambda: [items],
        lambda: [[item] for item in items],
        lambda: Liar(items),
        lambda: hostile(rng),
        lambda: scalar(rng),
    )
    return rng.choice(makers)()
