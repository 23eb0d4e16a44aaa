"""Rewards for the form of an answer, whatever it says: tags, JSON, length.

Each is made with its settings and then called with a problem and a text, in a task's `score` or as a reward of its own:
`grpo.rewards.format:tags("think", "answer")*0.2`. A form that pays as much as the right answer is what a policy learns
first and keeps: weigh it low.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.types import Problem

FormReward = Callable[[Problem, str], float]


def tags(*names: str) -> FormReward:
    """1 where the text is exactly these tags one after another, each opened and closed once, and none empty.

    >>> reward, problem = tags("think", "answer"), Problem("p", "6*7=", "42")
    >>> reward(problem, "<think>6*7</think> <answer>42</answer>")
    1.0
    >>> [reward(problem, text) for text in ("42", "<think></think><answer>42</answer>", "<answer>42</answer>")]
    [0.0, 0.0, 0.0]
    """
    if not names:
        raise GrpoError('reward tags: name the tags, as in tags("think", "answer")')
    each = [rf"<{name}>(?!\s*</{name}>).*?</{name}>" for name in map(re.escape, names)]
    whole = re.compile(r"\s*" + r"\s*".join(each) + r"\s*", re.DOTALL)

    def reward(problem: Problem, text: str) -> float:
        once = all(text.count(f"<{name}>") == text.count(f"</{name}>") == 1 for name in names)
        return float(once and whole.fullmatch(text) is not None)

    return reward


def json_schema(schema: str | Mapping[str, Any]) -> FormReward:
    """1 where the text, or what stands between its ```json fences, is JSON that fits the schema, or that of a file.

    Of JSON Schema: type, properties, required, additionalProperties, items, enum, minimum, maximum, minItems, maxItems.
    A schema that asks for anything else is refused.

    >>> reward = json_schema({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}})
    >>> [reward(Problem("p", "", ""), text) for text in ('{"x": 3}', '```json\\n{"x": 0}\\n```', '{"x": "3"}', "{}")]
    [1.0, 1.0, 0.0, 0.0]
    """
    wanted = _known(_read_schema(Path(schema)) if isinstance(schema, str) else schema)

    def reward(problem: Problem, text: str) -> float:
        fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", text, re.DOTALL)
        try:
            return float(_fits(json.loads(fenced[1] if fenced else text), wanted))
        except (ValueError, RecursionError):  # a border: text of a model
            return 0.0

    return reward


def length(most: int) -> FormReward:
    """1 up to `most` characters, then falling in a straight line to 0 at twice that.

    >>> [length(100)(Problem("p", "", ""), "x" * count) for count in (0, 100, 150, 200, 900)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    if most < 1:
        raise GrpoError(f"reward length: a length is at least 1; got {most}")
    return lambda problem, text: min(1.0, max(0.0, 2.0 - len(text) / most))


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:  # a border: people write these files
        raise GrpoError(f"reward json_schema: {path} cannot be read as JSON: {error}") from None


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


CHECKED: dict[str, type | tuple[type, ...]] = {
    "type": (str, list),
    "properties": Mapping,
    "required": list,
    "additionalProperties": bool,
    "items": Mapping,
    "enum": list,
    "minimum": (int, float),
    "maximum": (int, float),
    "minItems": int,
    "maxItems": int,
}
REMARKS = ("$schema", "$id", "$comment", "title", "description", "default", "examples")


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else kind


def _known(schema: Any) -> Mapping[str, Any]:
    """The same, once everything it asks for is something that can be checked: what is passed over would be paid."""
    if not isinstance(schema, Mapping):
        raise GrpoError(f'reward json_schema: a schema is an object, such as {{"type": "array"}}; got {schema!r}')
    for key, value in schema.items():
        if key not in CHECKED and key not in REMARKS:
            raise GrpoError(f"reward json_schema: {key!r} is not checked here; known are {', '.join(CHECKED)}")
        if key in CHECKED and not isinstance(value, CHECKED[key]):
            raise GrpoError(f"reward json_schema: {key!r} cannot be {value!r}")
    if strange := [kind for kind in _kinds(schema) if kind not in TYPES]:
        raise GrpoError(f"reward json_schema: no type {strange[0]!r}; known are {', '.join(TYPES)}")
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        _known(inner)
    return schema


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and not (isinstance(value, bool) and kind in ("number", "integer"))


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds = _kinds(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
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
