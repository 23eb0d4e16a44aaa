"""Builds problems from rows by the settings of `[dataset]`: which columns are used, and how the prompt is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks.conversation import Messages, is_conversation, message_text, read_conversation, with_system_prompt
from grpo.tasks.readers import DataRow, shown
from grpo.tasks.row_hash import row_ids
from grpo.tasks.template import Template
from grpo.types import Problem, chat

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "input")
ANSWER_COLUMNS = ("answer", "gold", "target", "label", "solution", "output")
WITHOUT_GOLDS = "none"
"""Value of `dataset.answer` for rows without gold answers."""


@dataclass(frozen=True)
class Builder:
    """Builds problems from rows by the settings of `[dataset]`."""

    settings: Dataset
    default_template: str
    gold: Callable[[str], str]
    """Extracts the gold answer from the text of its column."""
    answers: Sequence[str] = ANSWER_COLUMNS

    def build(self, rows: Sequence[DataRow], *, apart: bool = False) -> list[Problem]:
        """The rows as problems. Those of a held-out file of its own (`apart`) may have other columns than the training
        rows: where it lacks a named column, the usual names are tried."""
        columns = list(dict.fromkeys(name for row in rows for name in row.columns))
        prompt = self._prompt_column(columns, rows[0], apart)
        answer = self._answer_column(columns, rows[0], apart)
        ids = row_ids((row.place, row.columns) for row in rows)
        problems = [self.problem(row, key, prompt, answer) for row, key in zip(rows, ids, strict=True)]
        self._refuse_gold_in_prompt(problems, prompt)
        _refuse_surrogates(problems)
        return problems

    def problem(self, row: DataRow, key: str, prompt: str, answer: str) -> Problem:
        """A row as the problem with the id `key`. `prompt` and `answer` are its columns; empty: it has none."""
        gold = self._gold(row, answer)
        question = self._question(row, prompt)
        system_prompt, in_chat = self.settings.system_prompt, self.settings.chat
        if is_conversation(question):
            turns = self._in_template(row, prompt, read_conversation(question, row.place, prompt))
            turns = with_system_prompt(turns, system_prompt, row.place)
            text = "\n\n".join(message_text(turn) for turn in turns)
            in_turns = tuple(turns) if in_chat else ()
            return Problem(key, text, gold, in_turns, row.columns, conversational=True, place=row.place)
        if not isinstance(question, str) or not question.strip():
            what = f'column "{prompt}"' if prompt else "the filled template"
            raise GrpoError(f"{row.place}: {what} must be text that is not empty; got {shown(question)}")
        text = self.template.filled({**row.columns, "prompt": question}, row.place) if prompt else question
        messages = chat(text, system_prompt) if in_chat else ()
        plain = f"{system_prompt}\n\n{text}" if system_prompt else text
        return Problem(key, plain, gold, messages, row.columns, place=row.place)

    @cached_property
    def template(self) -> Template:
        template = Template(self.settings.template or self.default_template)
        if not template.names:
            raise GrpoError("field dataset.template: names no column; put {prompt} where the question belongs")
        return template

    def _prompt_column(self, columns: Sequence[str], first: DataRow, apart: bool) -> str:
        named = self.settings.prompt
        if found := _first(named, PROMPT_COLUMNS, columns, apart):
            return found
        if not named and self.settings.template and "prompt" not in self.template.names:
            return ""  # the template makes the prompt of other columns
        raise GrpoError(_missing("prompt", named, PROMPT_COLUMNS, first, columns))

    def _answer_column(self, columns: Sequence[str], first: DataRow, apart: bool) -> str:
        named = self.settings.answer
        if named == WITHOUT_GOLDS:
            return ""
        found = _first(named, self.answers, columns, apart)
        if named and not found and not apart:
            raise GrpoError(_missing("answer", named, self.answers, first, columns))
        return found

    def _question(self, row: DataRow, column: str) -> Any:
        if not column:
            return self.template.filled(row.columns, row.place)
        if column not in row.columns:
            raise GrpoError(f'{row.place}: has no column "{column}"; it has {", ".join(row.columns)}')
        return row.columns[column]

    def _in_template(self, row: DataRow, column: str, turns: Messages) -> Messages:
        """The conversation with its last user message in the template of the settings. A task's own template is for
        questions: a conversation says itself what is asked."""
        if not self.settings.template:
            return turns
        last = max((at for at, turn in enumerate(turns) if turn["role"] == "user"), default=None)
        if last is None:
            raise GrpoError(f'{row.place}: column "{column}" has no user message for dataset.template to be applied to')
        question = turns[last]["content"]
        text = self.template.filled({**row.columns, column: question, "prompt": question}, row.place)
        return [*turns[:last], {**turns[last], "content": text}, *turns[last + 1 :]]

    def _gold(self, row: DataRow, column: str) -> str:
        """Empty where the row has none."""
        return next(filter(None, map(self.gold, accepted(row.columns.get(column)))), "")

    def _refuse_gold_in_prompt(self, problems: Sequence[Problem], prompt: str) -> None:
        """The template must not name the gold's column, nor another one of the usual names with the same golds."""
        for name in sorted(self.template.names & {*self.answers, self.settings.answer} - {prompt, "prompt"}):
            rows = [(DataRow(problem.place, problem.columns), problem.answer) for problem in problems]
            if any(gold for _, gold in rows) and all(self._gold(row, name) == gold for row, gold in rows):
                raise GrpoError(
                    f"field dataset.template: {{{name}}} would put the gold answer into the prompt; leave it out, or "
                    f"name the gold's column with --dataset.answer ({WITHOUT_GOLDS}: the rows have no golds, and the "
                    "reward is your own)"
                )


def accepted(value: Any) -> list[str]:
    """The texts of a gold answer, which may be a list of accepted ones. Missing values and objects have none.

    >>> accepted(["7", None, float("nan")]), accepted(7.5), accepted(True), accepted({"value": 7})
    (['7'], ['7.5'], ['yes'], [])
    """
    if hasattr(value, "tolist") and not isinstance(value, Number):  # an array, a tensor, or a boolean of numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        nested = any(isinstance(each, list | tuple | Mapping) for each in value)
        return [] if nested else [text for each in value for text in accepted(each)]
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    is_text = isinstance(value, str | Number) and value == value  # NaN: an empty cell of pandas
    return [str(value)] if is_text else []


def notes_on_prompts(rows: Sequence[DataRow], settings: Dataset) -> list[str]:
    """Which column is the prompt, where another one with a usual name has text."""
    if settings.prompt or settings.template:
        return []
    names = {name for row in rows for name in row.columns}
    first, *others = [name for name in PROMPT_COLUMNS if name in names] or [""]
    unread = [name for name in others if any(_has_text(row.columns.get(name)) for row in rows)]
    if not unread:
        return []
    verb = "is" if len(unread) == 1 else "are"
    return [
        f"the prompt is column {first}; {', '.join(unread)} {verb} not read; name another with --dataset.prompt, or "
        "several with --dataset.template"
    ]


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _refuse_surrogates(problems: Sequence[Problem]) -> None:
    """JSON can hold half of a surrogate pair, which no tokenizer reads and no record stores."""
    for problem in problems:
        if found := re.search("[\ud800-\udfff]", problem.prompt + problem.answer):
            raise GrpoError(f"{problem.place}: {found[0]} is half of a character (a lone surrogate); write a whole one")


def require_golds(problems: Sequence[Problem], settings: Dataset, usual: Sequence[str], otherwise: str = "") -> None:
    """Raise GrpoError where a problem has no gold answer. `otherwise`: what to do instead of naming the column."""
    first = next((problem for problem in problems if not problem.answer), None)
    if first is None:
        return
    row, columns = DataRow(first.place, first.columns), list(dict.fromkeys(n for p in problems for n in p.columns))
    column = "" if settings.answer == WITHOUT_GOLDS else _first(settings.answer, usual, columns, apart=True)
    if not column:
        raise GrpoError(_missing("answer", "", usual, row, columns) + otherwise)
    if column not in first.columns:
        raise GrpoError(f'{first.place}: has no column "{column}"; it has {", ".join(first.columns)}{otherwise}')
    got = shown(first.columns[column])
    raise GrpoError(f'{first.place}: column "{column}" has no gold answer; got {got}{otherwise}')


def mapped(problem: Problem, named: str, usual: Sequence[str]) -> Any:
    """The row's value in the named column, or in the first usual one."""
    return problem.columns.get(_first(named, usual, list(problem.columns), apart=True))


def _first(named: str, usual: Sequence[str], columns: Sequence[str], apart: bool) -> str:
    """The named column, or the first of the usual ones, if it is there; else an empty name."""
    names = [named, *usual] if apart else [named] if named else usual
    return next((name for name in names if name in columns), "")


def _missing(use: str, named: str, usual: Sequence[str], row: DataRow, columns: Sequence[str]) -> str:
    file = re.sub(r":\d+$|\[\d+\]$", "", row.place)
    wanted = f"no column {named!r}" if named else f"no column named {', '.join(usual)}"
    return f"field dataset.{use}: {wanted} in {file}, which has {', '.join(columns)}; name one with --dataset.{use}"
