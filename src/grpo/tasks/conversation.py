"""Prompts that are conversations: lists of messages with a role and a content, checked message by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from grpo.errors import GrpoError
from grpo.tasks.readers import shown

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that chat templates know. Many templates write any other role without a word, so that a typing error such as
"User" would give a prompt the model has never seen."""
SYSTEM_ROLES = ("system", "developer")

Messages = list[dict[str, str]]


def is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether a value is meant as one: a list of objects."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def read_conversation(turns: Sequence[Mapping[str, Any]], place: str, column: str) -> Messages:
    """The messages with their content as text. Raises GrpoError that names the place and the message.

    >>> parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "6*7?"}]
    >>> read_conversation([{"role": "user", "content": parts}], "rows.jsonl:1", "prompt")
    [{'role': 'user', 'content': 'What is 6*7?'}]
    """
    messages = []
    for number, turn in enumerate(turns, 1):
        where = f'{place}: column "{column}", message {number}'
        for key in ("role", "content"):
            if key not in turn:
                raise GrpoError(f"{where}: has no {key}; it has {', '.join(map(str, turn)) or 'nothing'}")
        if turn["role"] not in ROLES:
            raise GrpoError(f"{where}: role {shown(turn['role'])} is unknown; use {', '.join(ROLES)}")
        if turn.get("tool_calls"):
            raise GrpoError(f"{where}: has tool_calls, which would be missing in the prompt; write them as content")
        messages.append({"role": turn["role"], "content": _text(turn["content"], where)})
    if not any(message["content"].strip() for message in messages):
        raise GrpoError(f'{place}: column "{column}" must have text; every message is empty')
    return messages


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
