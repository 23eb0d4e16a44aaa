"""Reward functions that a caller hands over as Python objects."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from grpo.errors import GrpoError
from grpo.rewards.functions import parse

Function = Callable[..., Any]
Reward = str | Function | tuple[str | Function, float]
"""A function, the text of the field `reward`, or either with a weight."""
FORMS = "a function, a text such as mine.py:close, or a tuple (function, weight)"


def take_rewards(reward: Reward | Sequence[Reward]) -> tuple[str, dict[str, Function]]:
    """The field `reward` that a record stores, and the functions it names with `python:`.

    >>> def close(problem, text): ...
    >>> text, functions = take_rewards([(close, 0.5), lambda problem, text: 1.0, "task"])
    >>> text, list(functions)
    ('python:close*0.5, python:lambda, task', ['close', 'lambda'])
    """
    functions: dict[str, Function] = {}
    entries = [_entry(each, functions) for each in ([reward] if _is_one(reward) else reward)]  # type: ignore[union-attr]
    if not entries:
        raise GrpoError(f"field reward: the list is empty; give {FORMS}")
    return ", ".join(entries), functions


def _is_one(reward: Any) -> bool:
    return not isinstance(reward, list | tuple) or _is_weighted(reward)


def _is_weighted(reward: Any) -> bool:
    return isinstance(reward, tuple) and len(reward) == 2 and isinstance(reward[1], int | float)


def _entry(reward: Any, functions: dict[str, Function]) -> str:
    function, weight = reward if _is_weighted(reward) else (reward, None)
    if weight is not None and not math.isfinite(weight):
        raise GrpoError(f"field reward: the weight {weight!r} is not a finite number")
    if isinstance(function, str):
        if weight is not None and len(parse(function)) != 1:
            raise GrpoError(f"field reward: {function!r} with a weight must be one reward")
        name = function
    else:
        name = f"python:{_named(function, functions)}"
    return name if weight is None else f"{name}*{float(weight)!r}"


def _named(function: Any, functions: dict[str, Function]) -> str:
    """Adds the function under a name that no other has, and returns that name."""
    if isinstance(function, type):
        raise GrpoError(f"field reward: {function.__name__} is a class; hand over an object of it")
    if not callable(function):
        raise GrpoError(f"field reward: got an object of type {type(function).__name__}; give {FORMS}")
    inner = function.func if isinstance(function, partial) else function
    plain = re.sub(r"\W", "", getattr(inner, "__name__", type(inner).__name__)) or "function"
    name, number = plain, 1
    while name in functions:
        number += 1
        name = f"{plain}_{number}"
    functions[name] = function
    return name
