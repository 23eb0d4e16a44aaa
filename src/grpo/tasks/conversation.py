"""Conversations: lists of messages with a role and a content, checked message by message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from grpo.errors import GrpoError
from grpo.tasks.readers import shown

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that chat templates know. Many templates write any other role without a word, so that a typing error such as
"User" would give a prompt the model has never seen."""
SYSTEM_ROLES = ("system", "developer")

Messages = list[dict[str, Any]]
NO_ARGUMENTS = {"type": "object", "properties": {}}


def is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether a value is meant as one: a list of objects."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def read_conversation(turns: Sequence[Mapping[str, Any]], place: str, column: str) -> Messages:
    """The messages, of which one or more have text or tool calls. Raises GrpoError that names the place.

    >>> parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "6*7?"}]
    >>> read_conversation([{"role": "user", "content": parts}], "rows.jsonl:1", "prompt")
    [{'role': 'user', 'content': 'What is 6*7?'}]
    """
    where = f'{place}: column "{column}"'
    messages = read_messages(turns, where)
    if not any(message["content"].strip() or message.get("tool_calls") for message in messages):
        raise GrpoError(f"{where} must have text; every message is empty")
    return messages


def read_messages(turns: Sequence[Mapping[str, Any]], source: str) -> Messages:
    """The messages with their content as text. Their other keys, such as `tool_calls` and `name`, are for the chat
    template. Raises GrpoError that names the source and the message."""
    messages = []
    for number, turn in enumerate(turns, 1):
        where = f"{source}, message {number}"
        calls = turn.get("tool_calls")
        for key in ("role",) if calls else ("role", "content"):
            if key not in turn:
                raise GrpoError(f"{where}: has no {key}; it has {', '.join(map(str, turn)) or 'nothing'}")
        if turn["role"] not in ROLES:
            raise GrpoError(f"{where}: role {shown(turn['role'])} is unknown; use {', '.join(ROLES)}")
        others = {key: value for key, value in turn.items() if key not in ("role", "content") and value is not None}
        if calls:
            others["tool_calls"] = _calls(calls, turn["role"], where)
        content = turn.get("content")
        text = "" if content is None and calls else _text(content, where)
        messages.append({"role": turn["role"], "content": text, **others})
    return messages


def read_tools(value: Any, place: str) -> tuple[Mapping[str, Any], ...]:
    """The schemas in a row's column `tools`: a list, or JSON of one, as in TRL; none where the row has none.

    >>> read_tools('[{"name": "now", "strict": null}]', "rows.jsonl:1")
    ({'type': 'function', 'function': {'name': 'now', 'parameters': {'type': 'object', 'properties': {}}}},)
    """
    try:
        schemas = json.loads(value) if isinstance(value, str) and value else value
    except ValueError:  # border: a file people edit
        schemas = value
    if not schemas:
        return ()
    functions: list[Any] = [each.get("function", each) for each in schemas] if is_conversation(schemas) else [None]
    if not all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in functions):
        raise GrpoError(f'{place}: column "tools" must be a list of JSON schemas of functions; got {shown(value)}')
    whole = [each if "parameters" in each else {**each, "parameters": NO_ARGUMENTS} for each in functions]
    return tuple({"type": "function", "function": _without_none(each)} for each in whole)


def message_text(message: Mapping[str, Any]) -> str:
    """The message's content, and its tool calls as JSON.

    >>> message_text({"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]})
    '[{"name": "add", "arguments": {"a": 1}}]'
    """
    calls = json.dumps(message["tool_calls"], ensure_ascii=False) if message.get("tool_calls") else ""
    return "\n".join(filter(None, (message["content"], calls)))


def _calls(calls: Any, role: str, where: str) -> list[dict[str, Any]]:
    """The calls with their arguments as objects, which chat templates expect; OpenAI's are JSON in a text.

    >>> call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}, "id": None}
    >>> _calls([call], "assistant", "rows.jsonl:1")
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    if role != "assistant":
        raise GrpoError(f"{where}: has tool_calls, which only the assistant's messages have; remove them")
    found = []
    for call in calls if isinstance(calls, list | tuple) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise GrpoError(f"{where}: tool_calls has {shown(call)}; write a list of objects with name and arguments")
        arguments = function.get("arguments")
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
        except ValueError:  # border: a file people edit
            raise GrpoError(f"{where}: tool_calls has arguments that are not JSON: {shown(arguments)}") from None
        function = {**_without_none(function), "arguments": _without_none(arguments)}
        found.append(function if "function" not in call else {**_without_none(call), "function": function})
    return found


def _without_none(value: Any) -> Any:
    """Parquet and datasets give every object the keys of all others, with None where it has none."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _text(content: Any, where: str) -> str:
    """The content as text: itself, or its text parts joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise GrpoError(f"{where}: content must be text or a list of text parts; got {shown(content)}")
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = shown(part.get("type"))
            raise GrpoError(f"{where}: content has a part of type {kind}; only text parts can be read")
    return "".join(part["text"] for part in content)


def with_system_prompt(messages: Messages, system_prompt: str, place: str) -> Messages:
    """The messages after a system message with this text, if there is one."""
    if not system_prompt:
        return messages
    if messages[0]["role"] in SYSTEM_ROLES:
        raise GrpoError(
            f"field dataset.system_prompt: the conversation in {place} has a system message already; leave out one of "
            "the two"
        )
    return [{"role": "system", "content": system_prompt}, *messages]
