"""Tools: functions that the model may call, their JSON schemas, and the calls in the text of a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema
from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
    get_json_schema,
)

from grpo.errors import GrpoError, one_line
from grpo.rewards.place import Place
from grpo.tasks.handed_over import refuse_recorded

MARKED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""A call in Hermes' form, which Qwen writes too. The end of the turn closes it as well."""
INVALID = (ValueError, RecursionError)
"""Border: what JSON raises on a text of the model; a number of 5,000 digits is a ValueError, too."""
LONGEST_ERROR = 300
"""Characters of an error that the model reads."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema, as the chat template shows it to the model."""
    place: Place | None = None
    """Where a worker loads it; None for a function handed over in Python."""
    function: Callable[..., Any] | None = None


def load_tools(text: str, functions: Mapping[str, Callable[..., Any]] | None = None) -> tuple[Tool, ...]:
    """The tools of the field `episodes.tools`. `functions`: handed over in Python, by the name after `python:`."""
    tools: list[Tool] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        handed_over = (functions or {}).get(entry.removeprefix("python:"))
        if handed_over is None:
            refuse_recorded("episodes.tools", entry, "name others with --tools")
            place = Place.parse(entry, "tool")
            tool = Tool(place.name, schema_of(place.load(), f"tool {place}"), place)
        else:
            schema = schema_of(handed_over, f"tool {entry.removeprefix('python:')}")
            tool = Tool(schema["function"]["name"], schema, function=handed_over)
        if tool.name in [other.name for other in tools]:
            raise GrpoError(f"field episodes.tools: two functions are called {tool.name}; rename one")
        tools.append(tool)
    return tuple(tools)


def schema_of(function: Callable[..., Any], what: str) -> Mapping[str, Any]:
    """Its name, description and arguments as JSON schema, from types and docstring. `what`: its name in messages."""
    if isinstance(function, type):
        raise GrpoError(f"{what}: is a class; name a function, or use --env for an environment")
    try:
        schema: Mapping[str, Any] = get_json_schema(function)
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])
        return schema
    except TypeHintParsingException as error:
        advice = "give each argument a type, such as x: int (also float, str, bool, list[int], dict[str, int])"
        raise GrpoError(f"{what}: {one_line(str(error), LONGEST_ERROR)}; {advice}") from None
    except DocstringParsingException as error:
        advice = 'write a docstring: what it does, then "Args:" and for each argument a line "x: what it is"'
        raise GrpoError(f"{what}: {one_line(str(error), LONGEST_ERROR)}; {advice}") from None
    except Exception as error:  # border: types that people wrote as text, signatures of builtins
        raise GrpoError(f"{what}: has no usable types: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Asked:
    """A call that a turn asks for."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    written: str = ""
    """The arguments as JSON; where it cannot be read as a call, its text."""
    error: str = ""
    """Why it cannot be made: one line, which the model reads as the answer."""


class CallReader:
    """Finds the calls in the text of a turn and checks them against the tools' schemas.

    The form of a call is the tokenizer's `response_template`, where it has one; otherwise `<tool_call>{…}</tool_call>`
    (Hermes, Qwen) or a turn that is one JSON object with a name and parameters (Llama 3).
    """

    def __init__(self, schemas: Sequence[Mapping[str, Any]], tokenizer: Any = None, prefix: str = ""):
        """`prefix`: what the chat template writes before a turn of the assistant."""
        self.tokenizer, self.prefix, self.schemas = tokenizer, prefix, [dict(schema) for schema in schemas]
        self.own_form = getattr(tokenizer, "response_template", None) is not None
        parameters = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}
        self.parameters = {name: {**each, "additionalProperties": False} for name, each in parameters.items()}
        self.validators = {name: jsonschema.Draft202012Validator(each) for name, each in self.parameters.items()}
        # Completions of a group often write the same turn, and transformers takes about a millisecond to read one.
        self._calls_in = lru_cache(maxsize=4096)(self._read)

    def read(self, text: str) -> tuple[Sequence[Asked], str]:
        """The calls in order, and the text without them. Thinking is not searched."""
        return self._calls_in(text)

    def _read(self, text: str) -> tuple[Sequence[Asked], str]:
        if self.own_form:
            return self._parsed(text)
        thought, _, content = text.rpartition("</think>")
        if not thought and "<think>" in text:
            return [], text
        found = MARKED.findall(content)
        if not found and _is_bare_call(content):
            return [self._decoded(content.strip())], ""
        return [self._decoded(inner.strip()) for inner in found], MARKED.sub("", content).strip()

    def checked(self, call: Any, written: str) -> Asked:
        """The call, with an error where it names no tool or its arguments do not fit."""
        name = call.get("name") if isinstance(call, Mapping) else None
        if not isinstance(name, str):
            return Asked("", written=written, error='error: a call needs a "name" and "arguments"')
        if name not in self.parameters:
            known = ", ".join(self.parameters)
            return Asked(name, written=written, error=_shown(f"error: unknown function {name}; known: {known}"))
        arguments = call.get("arguments", call.get("parameters"))
        arguments = self._cast(name, {} if arguments is None else arguments)
        problem = jsonschema.exceptions.best_match(self.validators[name].iter_errors(self._present(name, arguments)))
        written = json.dumps(arguments, ensure_ascii=False)
        if problem is not None:
            argument = f"argument {problem.path[0]}: " if problem.path else ""
            return Asked(name, written=written, error=_shown(f"error: {name}: {argument}{problem.message}"))
        return Asked(name, arguments, written)

    def _cast(self, name: str, arguments: Any) -> Any:
        """The arguments, with texts that stand for a number, a list and so on read as JSON where a text does not fit
        and the value does, as TRL does."""
        if isinstance(arguments, str):
            arguments = _json(arguments, arguments)
        if not isinstance(arguments, Mapping):
            return arguments
        properties = self.parameters[name]["properties"]
        return {key: _cast(value, properties.get(key)) for key, value in arguments.items()}

    def _present(self, name: str, arguments: Any) -> Any:
        """The arguments without those that are null and may be: JSON schema has no `nullable`."""
        if not isinstance(arguments, Mapping):
            return arguments
        properties = self.parameters[name]["properties"]
        optional = {key for key, each in properties.items() if each.get("nullable")}
        return {key: value for key, value in arguments.items() if value is not None or key not in optional}

    def _decoded(self, inner: str) -> Asked:
        try:
            call = json.loads(inner)
            json.dumps(call, ensure_ascii=False).encode()  # JSON can hold half of a surrogate pair
            return self.checked(call, inner)
        except INVALID as error:
            return Asked("", written=inner, error=_shown(f"error: the call is not valid JSON: {error}"))

    def _parsed(self, text: str) -> tuple[Sequence[Asked], str]:
        try:
            message = self.tokenizer.parse_response(text, prefix=self.prefix, tools=self.schemas)
        except (*INVALID, TypeError, KeyError) as error:  # border: what the model wrote, parsed by transformers
            reason = str(error.__cause__ or error)
            return [Asked("", written=text, error=_shown(f"error: the call cannot be read: {reason}"))], ""
        calls = message.get("tool_calls") or []
        read = [self.checked(call.get("function", call), json.dumps(call, ensure_ascii=False)) for call in calls]
        return read, message.get("content") or ""


def _is_bare_call(text: str) -> bool:
    """Whether the turn is one JSON object with a name and parameters."""
    found = _json(text, None) if text.lstrip().startswith("{") else None
    return isinstance(found, dict) and "name" in found and ("parameters" in found or "arguments" in found)


def _cast(value: Any, schema: Mapping[str, Any] | None) -> Any:
    if not isinstance(value, str) or schema is None or jsonschema.Draft202012Validator(schema).is_valid(value):
        return value
    read = _json(value, value)
    return read if jsonschema.Draft202012Validator(schema).is_valid(read) else value


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except INVALID:
        return otherwise


def _shown(text: str) -> str:
    return one_line(text, LONGEST_ERROR)
