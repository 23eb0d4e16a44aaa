"""Rows for supervised fine-tuning: which column is learned, and conversations as a prompt and what was written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks.builder import ANSWER_COLUMNS, PROMPT_COLUMNS
from grpo.tasks.conversation import Messages, is_conversation, message_text, read_conversation
from grpo.tasks.readers import DataRow

WRITTEN_COLUMNS = ("completion", "response", *ANSWER_COLUMNS)
"""Names of the column that is learned. Beside a completion, a label or target is something else."""
IN_ORDER = ("completion", "messages", *WRITTEN_COLUMNS[1:])


@dataclass(frozen=True)
class WrittenRows:
    """Rows that all have what is learned in one column, whichever it was in."""

    rows: Sequence[DataRow]
    settings: Dataset
    """They name that column, and that of the prompts where conversations gave them."""
    conversations: Mapping[str, Messages]
    """By place: what is learned, if that is more than one text."""
    notes: Sequence[str]

    @classmethod
    def of(cls, rows: Sequence[DataRow], settings: Dataset) -> WrittenRows:
        """Of each row the first column in order that holds something is learned, or the named one."""
        found = [_filled(row, settings) for row in rows]
        names = {name for row in rows for name in row.columns}
        first = next((columns[0] for columns in found if columns), "")
        # Messages hold the prompt too, whose column may be the same.
        answer = "completion" if first == "messages" else settings.answer or first
        prompt = settings.prompt or next((name for name in PROMPT_COLUMNS if name in names), "prompt")
        read = [
            _as_text(row, columns[0], prompt, answer, settings) if columns else (row, [])
            for row, columns in zip(rows, found, strict=True)
        ]
        conversations = {row.place: turns for row, turns in read if turns}
        if any(columns[:1] == ["messages"] for columns in found):
            settings = replace(settings, prompt=prompt)
        notes = [] if settings.answer else _notes(rows, found)
        return cls([row for row, _ in read], replace(settings, answer=answer), conversations, notes)


def _filled(row: DataRow, settings: Dataset) -> list[str]:
    """The columns that could be learned, in order."""
    names = (settings.answer,) if settings.answer else IN_ORDER
    found = [name for name in names if name in row.columns and _holds(name, row.columns[name])]
    if not found and "messages" in names and is_conversation(row.columns.get("messages")):
        return ["messages"]  # without a turn of the assistant, which is reported
    return found


def _holds(name: str, value: Any) -> bool:
    if name == "messages":
        return is_conversation(value) and any(turn.get("role") == "assistant" for turn in value[1:])
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list | tuple):
        return bool(value)
    return value is not None and not (isinstance(value, float) and math.isnan(value))  # pandas' empty cell


def _notes(rows: Sequence[DataRow], found: Sequence[Sequence[str]]) -> list[str]:
    """Which column is learned, where a row has text in others too."""
    for row, (first, *others) in ((row, columns) for row, columns in zip(rows, found, strict=True) if columns):
        if unread := [name for name in others if isinstance(row.columns[name], str | list)]:
            rest = f"{', '.join(unread)} {'is' if len(unread) == 1 else 'are'} not read"
            return [f"column {first} is learned, and {rest}; name another with --dataset.answer"]
    return []


def _as_text(row: DataRow, name: str, prompt: str, answer: str, settings: Dataset) -> tuple[DataRow, Messages]:
    """(the row with the text of column `name` in `answer`, and the beginning of a conversation in `prompt`; what was
    written as messages, if it is more than one text)"""
    columns, turns = dict(row.columns), []
    if not is_conversation(value := columns[name]):
        columns[answer] = value
        return DataRow(row.place, columns), []
    turns = read_conversation(value, row.place, name)
    if name == "messages":
        first = next((at for at, turn in enumerate(turns) if at and turn["role"] == "assistant"), None)
        if first is None:
            raise GrpoError(f'{row.place}: column "messages" must have two turns or more, the last of the assistant')
        if settings.prompt in ("", "messages"):
            columns[prompt] = turns[:first]
        turns = turns[first:]
    columns[answer] = _written(turns, row.place, name)
    is_text = len(turns) == 1 and turns[0].keys() == {"role", "content"}
    return DataRow(row.place, columns), [] if is_text else turns


def _written(turns: Messages, place: str, column: str) -> str:
    """The texts of a conversation that begins and ends with the assistant."""
    for at, expected in ((0, "first"), (-1, "last")):
        if turns[at]["role"] != "assistant":
            raise GrpoError(
                f'{place}: column "{column}": the {expected} message to learn is of role {turns[at]["role"]}; it must '
                "be the assistant's"
            )
    for turn in turns:
        if turn.keys() == {"role", "content"} and turn["role"] == "assistant" and not message_text(turn).strip():
            raise GrpoError(f'{place}: column "{column}" has an empty message of the assistant; write it, or remove it')
    for before, turn in pairwise(turns):
        if before["role"] == turn["role"] == "assistant":
            raise GrpoError(f'{place}: column "{column}" has two messages of the assistant in a row; join them')
    return "\n\n".join(message_text(turn) for turn in turns)
