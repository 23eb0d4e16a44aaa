"""Rewards for the form of a completion, independent of its answer: tags, JSON, length.

Each function takes settings and returns a reward function of (problem, text), for a task's `score` or for the field
`reward`: `grpo.rewards.format:tags("think", "answer")*0.2`. Give a form a low weight: if it earns as much as the right
answer, a policy learns the form first and nothing else.
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
WITHOUT_VALIDATOR = (
    *(
        "$schema",
        "$id",
        "$anchor",
        "$dynamicAnchor",
        "$defs",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
    ),
    *("then", "else", "minContains", "maxContains"),  # checked together with if and contains
)
"""Keywords of JSON Schema that no validator of their own checks."""


def tags(*names: str) -> FormReward:
    """1 where the text is exactly these tags in this order, each opened and closed once, and none empty.

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
    """1 where the text, or the content of its ```json fence, is JSON that is valid under the schema (a dict or a file).

    The schema is JSON Schema, draft 2020-12. Unknown keywords and keywords without effect are refused: ignoring them
    would reward any text.

    >>> reward = json_schema({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}})
    >>> [reward(Problem("p", "", ""), text) for text in ('{"x": 3}', '```json\\n{"x": 0}\\n```', '{"x": "3"}', "{}")]
    [1.0, 1.0, 0.0, 0.0]
    """
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    wanted = _read_schema(Path(schema)) if isinstance(schema, str) else schema
    try:
        Draft202012Validator.check_schema(wanted)
    except SchemaError as error:
        raise GrpoError(f"reward json_schema: {error.json_path} of the schema: {error.message}") from None
    _refuse_unknown_keywords(wanted)
    validator = Draft202012Validator(wanted, registry=Registry())  # the empty registry: nothing is downloaded

    def reward(problem: Problem, text: str) -> float:
        fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", text, re.DOTALL)
        try:
            return float(validator.is_valid(json.loads(fenced[1] if fenced else text)))
        except (ValueError, RecursionError):  # border: malformed text
            return 0.0
        except Unresolvable as error:
            raise GrpoError(f"reward json_schema: $ref {error.ref!r} is not in the schema") from None

    return reward


def length(most: int) -> FormReward:
    """1 up to `most` characters, then linearly down to 0 at twice that.

    >>> [length(100)(Problem("p", "", ""), "x" * count) for count in (0, 100, 150, 200, 900)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    if most < 1:
        raise GrpoError(f"reward length: must be at least 1; got {most}")
    return lambda problem, text: min(1.0, max(0.0, 2.0 - len(text) / most))


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:  # border: a missing or malformed file
        raise GrpoError(f"reward json_schema: {path} cannot be read as JSON: {error}") from None


def _refuse_unknown_keywords(schema: Any) -> None:
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import DRAFT202012

    known = {*Draft202012Validator.VALIDATORS, *WITHOUT_VALIDATOR} - {"format"}  # format is not checked by default
    if isinstance(schema, Mapping):
        if unknown := [key for key in schema if key not in known]:
            raise GrpoError(f"reward json_schema: keyword {unknown[0]!r} is unknown or not checked; leave it out")
        for inner in DRAFT202012.subresources_of(schema):
            _refuse_unknown_keywords(inner)
