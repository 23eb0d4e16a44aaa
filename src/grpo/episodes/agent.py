"""The trainer's side of an agent with a loop of its own (loop.py): its requests as a prompt and as answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.episodes.answers import Answer
from grpo.tasks.conversation import message_text
from grpo.types import Call, Problem

if TYPE_CHECKING:
    from grpo.episodes.tools import Asked


def prompted(problem: Problem, request: str) -> Problem:
    """The problem with the messages and tools of the agent's first request in place of its own.

    >>> request = '{"messages": [{"role": "user", "content": "6 x 7?"}], "tools": []}'
    >>> asked = prompted(Problem("p", "6*7?", "42"), request)
    >>> asked.prompt, asked.messages
    ('6 x 7?', ({'role': 'user', 'content': '6 x 7?'},))
    """
    first = json.loads(request)
    text = "\n\n".join(message_text(message) for message in first["messages"])
    return replace(problem, prompt=text, messages=tuple(first["messages"]), tools=tuple(first["tools"]))


def turn_sent(text: str, calls: Sequence[Asked]) -> str:
    """The model's turn as the agent gets it: JSON of its text, and of its calls."""
    made = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return json.dumps({"content": text, "tool_calls": made})


def answer_read(request: str, calls: Sequence[Asked]) -> Answer:
    """What the agent's request adds to the conversation: answers to the calls of the turn, or texts of the user."""
    messages = json.loads(request)
    if messages[0]["role"] != "tool":
        return "\n\n".join(message["content"] for message in messages)
    return tuple(Call(call.name, call.written, each["content"]) for call, each in zip(calls, messages, strict=True))
