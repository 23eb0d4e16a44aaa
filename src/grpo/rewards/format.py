"""Rewards for the form of an answer, whatever it says: tags, JSON, length. Parts of a task, or by name: `tags*0.2`.

A form that pays as much as the right answer is what a policy learns first and keeps: weigh it low.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.types import Problem

Reward = Callable[[Problem, str], float | None]


def tags(text: str, *names: str) -> float:
    """1 where the text is exactly these tags one after another, each opened and closed once, and none empty.

    >>> tags("<think>6*7</think> <answer>42</answer>", "think", "answer")
    1.0
    >>> [tags(text, "think", "answer") for text in ("42", "<think></think><answer>42</answer>", "<answer>42</answer>")]
    [0.0, 0.0, 0.0]
    """
    inside = [re.escape(name) for name in names or ("think", "answer")]
    if any(text.count(f"<{name}>") != 1 or text.count(f"</{name}>") != 1 for name in names or ("think", "answer")):
        return 0.0
    pattern = r"\s*".join(rf"<{name}>(?!\s*</{name}>).*?</{name}>" for name in inside)
    return float(re.fullmatch(rf"\s*{pattern}\s*", text, re.DOTALL) is not None)


def json_schema(text: str, schema: dict[str, Any]) -> float:
    """1 where the text, or what stands between its ```json fences, is JSON that fits the schema.

    Of JSON Schema: type, properties, required, additionalProperties, items, enum, minimum, maximum, minItems, maxItems.

    >>> schema = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "minimum": 0}}}
    >>> [json_schema(text, schema) for text in ('{"x": 3}', '```json\\n{"x": 0}\\n```', '{"x": "3"}', '{"x": -1}', "3")]
    [1.0, 1.0, 0.0, 0.0, 0.0]
    """
    fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", text, re.DOTALL)
    try:
        return float(_fits(json.loads(fenced[1] if fenced else text), schema))
    except (ValueError, RecursionError):  # a border: text of a model
        return 0.0


def length(text: str, most: int) -> float:
    """1 up to `most` characters, then falling in a straight line to 0 at twice that.

    >>> [length("x" * count, 100) for count in (0, 100, 150, 200, 900)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    return min(1.0, max(0.0, 2.0 - len(text) / most))


def named_reward(name: str) -> tuple[str, Reward]:
    """(part, reward) of `tags`, `tags=think+answer`, `json`, `json=schema.json` or `length=2000`, each with a weight
    after a star.

    >>> part, reward = named_reward("length=100*0.2")
    >>> part, reward(Problem("p", "", ""), "x" * 150)
    ('length', 0.1)
    """
    spec, star, written = name.partition("*")
    part, _, argument = spec.partition("=")
    try:
        weight = float(written) if star else 1.0
        function = MAKERS[part](argument)
    except KeyError:
        raise GrpoError(
            f"field reward: no reward {part!r}; known are {', '.join(MAKERS)}, or your own file.py"
        ) from None
    except ValueError as error:
        raise GrpoError(f"field reward: {name!r} is not understood ({error}); write it as length=2000*0.2") from None
    return part, lambda problem, text: weight * function(text)


def _tags(argument: str) -> Callable[[str], float]:
    return lambda text: tags(text, *argument.split("+")) if argument else tags(text)


def _json(argument: str) -> Callable[[str], float]:
    if argument and not Path(argument).is_file():
        raise GrpoError(f"field reward: there is no file {argument}")
    schema = json.loads(Path(argument).read_text()) if argument else {}
    return lambda text: json_schema(text, schema)


def _length(argument: str) -> Callable[[str], float]:
    most = int(argument or 2000)
    if most < 1:
        raise ValueError("a length is at least 1")
    return lambda text: length(text, most)


MAKERS: dict[str, Callable[[str], Callable[[str], float]]] = {"tags": _tags, "json": _json, "length": _length}

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("number", "integer"))):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if isinstance(value, list):
        enough = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return enough and all(_fits(each, schema.get("items", {})) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        strangers = set(value) - set(known) if schema.get("additionalProperties") is False else set()
        present = all(name in value for name in schema.get("required", ()))
        return present and not strangers and all(_fits(value[name], known[name]) for name in known if name in value)
    return True
