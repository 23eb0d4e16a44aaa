"""Prints an episode: the turns of the model, and what it read between them.

All texts are untrusted: they are printed through `printable` only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from grpo.cli.terminal.line import FAINT, printable
from grpo.record.columns import SPOKEN, turns
from grpo.rewards import error_line
from grpo.types import Completion


def spoken(done: Completion) -> list[dict[str, Any]]:
    """The turns of an episode and its observations, in order, as the record has them; empty where it is not an episode.

    >>> import numpy as np
    >>> from grpo.types import Call, Observation
    >>> answer = Observation(2, np.array([4, 2]), "42", (Call("multiply", '{"a": 6, "b": 7}', "42"),))
    >>> done = Completion("42", np.array([1, 2, 3]), np.zeros(3), "stop", ("6*7?", "42"), (answer,))
    >>> [(row["who"], row["text"], row["tokens"]) for row in spoken(done)]
    [('model', '6*7?', 2), ('tool', '42', 2), ('model', '42', 1)]
    """
    rows = [dict(zip(SPOKEN, values, strict=True)) for values in turns(done)]
    return [{**row, "calls": json.loads(row["calls"])} for row in rows]


def in_one_line(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The turns of an episode in one line, observations in brackets; the text of a completion without turns.

    >>> in_one_line("42", [{"who": "model", "text": "6*7?"}, {"who": "tool", "text": "42"}])
    '6*7? ⟨42⟩'
    """
    return " ".join(row["text"] if row["who"] == "model" else f"⟨{row['text']}⟩" for row in rows) if rows else text


def ending(done: Completion) -> str:
    """How many turns an episode took, and why it ended; empty where it is not an episode."""
    if not done.turns:
        return ""
    count = f"{len(done.turns)} {'turn' if len(done.turns) == 1 else 'turns'}"
    reason = error_line(done.why).removeprefix(f"{done.fault} in its episode: ")
    why = f" ({printable(reason, 200)})" if reason else ""
    return f"{count}, {f'environment: {done.fault}' if done.fault else f'finish {done.finish}'}{why}"


def episode_lines(done: Completion, width: int) -> list[Text]:
    """A line for each turn of the model; below it, indented and dim, what it read."""
    lines = []
    for row in spoken(done):
        if row["who"] == "model":
            reward = "" if row["reward"] is None else f"   reward {row['reward']:.2f}"
            text = printable(row["text"], max(10, width - len(reward))) if row["text"] else "(nothing)"
            lines.append(Text.assemble(text, (reward, FAINT)))
        else:
            answers = [_call(call) for call in row["calls"]] or [row["text"]]
            unread = "" if row["tokens"] else "   (not read)"
            most = max(10, width - 2 - len(unread))
            lines += [Text(f"  {printable(answer, most)}{unread}", FAINT) for answer in answers]
    return lines


def _call(call: Mapping[str, str]) -> str:
    """
    >>> _call({"name": "multiply", "arguments": '{"a": 6, "b": 7}', "answer": "42", "fault": ""})
    'multiply {"a": 6, "b": 7} → 42'
    >>> _call({"name": "", "arguments": "{", "answer": "error: the call is not valid JSON", "fault": "error"})
    'call { → error: the call is not valid JSON   (error)'
    """
    fault = f"   ({call['fault']})" if call["fault"] else ""
    return f"{call['name'] or 'call'} {call['arguments']} → {call['answer']}{fault}"
