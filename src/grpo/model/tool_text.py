"""Tools as text in the system message, for chat templates that know no tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES: Mapping[str, Any] = {"integer": 2, "number": 2.5, "boolean": True, "array": [], "object": {}}
"""Argument of the example call by its type; any other: a text."""


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The messages with the tools at the end of the system message, or in a new one."""
    if not tools:
        return messages
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    before = f"{first['content']}\n\n" if first else ""
    return ({"role": "system", "content": before + tool_text(tools)}, *messages[1 if first else 0 :])


def tool_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """A line for each tool, an example of a call, and where its answer stands.

    >>> schema = {"name": "double", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    >>> print(tool_text([{"function": schema}]))
    You can call these functions:
    {"name": "double", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    To call one, write its name and arguments as JSON, like this:
    <tool_call>{"name": "double", "arguments": {"x": 2}}</tool_call>
    Then stop. The result is given to you in <tool_response></tool_response>.
    """
    functions = [tool["function"] for tool in tools]
    call = {"name": functions[0]["name"], "arguments": example_arguments(tools[0])}
    lines = [json.dumps({key: each[key] for key in each if key != "return"}, ensure_ascii=False) for each in functions]
    return "\n".join(
        [
            "You can call these functions:",
            *lines,
            "To call one, write its name and arguments as JSON, like this:",
            call_text(call),
            "Then stop. The result is given to you in <tool_response></tool_response>.",
        ]
    )


def call_text(call: Mapping[str, Any]) -> str:
    """A call as such a template's model writes it."""
    written = {"name": call["name"], "arguments": call["arguments"]}
    return f"<tool_call>{json.dumps(written, ensure_ascii=False)}</tool_call>"


def example_arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each required argument, of its type."""
    parameters = tool["function"]["parameters"]
    return {name: _example(parameters["properties"][name]) for name in parameters.get("required", ())}


def _example(schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    return schema["enum"][0] if schema.get("enum") else EXAMPLES.get(kind if isinstance(kind, str) else "", "…")
