"""An episode as a conversation, in the form that TRL hands to reward functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from grpo.types import Call, Observation

Messages = tuple[dict[str, Any], ...]


def conversation(turns: Sequence[str], observations: Sequence[Observation]) -> Messages:
    """Turns of the model as messages of the assistant; between them those of tools, or of the user where a task or an
    environment answered. Empty where there are no turns.

    >>> import numpy as np
    >>> none = np.zeros(0, dtype=np.int64)
    >>> answer = Observation(5, none, "4042", calls=(Call("calculate", '{"expression": "47*86"}', "4042"),))
    >>> messages = conversation(["<tool_call>…", "4042"], [answer])
    >>> [message["role"] for message in messages], messages[1]
    (['assistant', 'tool', 'assistant'], {'role': 'tool', 'name': 'calculate', 'content': '4042'})
    """
    before = [seen for seen in observations if not seen.after]
    between = observations[len(before) :]
    opening = [message for seen in before for message in _read(seen)]
    messages = [message for turn, seen in zip_longest(turns, between) for message in _turn(turn, seen)]
    return (*opening, *messages)


def _turn(text: str, answer: Observation | None) -> Iterator[dict[str, Any]]:
    """The model's message, and those that answer it."""
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": arguments}}
        for call in (answer.calls if answer else ())
        if (arguments := _arguments(call)) is not None
    ]
    yield {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    if answer:
        yield from _read(answer)


def _read(seen: Observation) -> Iterator[dict[str, Any]]:
    for call in seen.calls:
        yield {"role": "tool", "name": call.name, "content": call.answer}
    if not seen.calls:
        yield {"role": "user", "content": seen.text}


def _arguments(call: Call) -> dict[str, Any] | None:
    """None where the model's text is no call."""
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):  # border: text of the model
        return None
    return found if isinstance(found, dict) and call.name else None
