"""Makes problems of rows: which columns they use, how prompts are written, which rows are held out.

A row's place, such as `rows.jsonl:17`, is its problem's id, so every message about a problem names the row. A hash of
the prompt decides which rows are held out, so the split stays when rows are added or sorted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks.handed_over import Rows
from grpo.tasks.readers import DataRow, read_rows, shown
from grpo.types import Problem, chat

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "input")
ANSWER_COLUMNS = ("answer", "gold", "target", "label", "solution", "output")
WRITTEN_COLUMNS = (*ANSWER_COLUMNS, "completion", "response")


@dataclass(frozen=True)
class Source:
    """A file or dataset, and the settings that read it."""

    data: str = ""
    settings: Dataset = field(default_factory=Dataset)
    rows: Rows | None = None
    """Rows handed over in Python; `data` is then only their name."""

    def read(self, split: str) -> list[DataRow]:
        """All rows of a split."""
        if self.rows is None:
            return read_rows(self.data, split, self.settings.subset)
        if "" in self.rows:
            return [DataRow(f"data[{i}]", row) for i, row in enumerate(self.rows[""])]
        if split not in self.rows:
            raise GrpoError(f"field dataset.split: data has no split {split!r}; it has {', '.join(self.rows)}")
        return [DataRow(f"data[{split!r}][{i}]", row) for i, row in enumerate(self.rows[split])]

    def or_else(self, data: str, **settings: Any) -> Source:
        """This source, or the given one where this names no data."""
        return self if self.data else Source(data, replace(self.settings, **settings))


@dataclass(frozen=True)
class Problems:
    """Training problems and held-out problems."""

    train: Sequence[Problem]
    heldout: Sequence[Problem]

    @property
    def fingerprint(self) -> str:
        """Hash of all problems: a resumed run must have the same."""
        digest = hashlib.sha256()
        for problem in (*self.train, *self.heldout):
            digest.update(json.dumps([problem.id, problem.prompt, problem.answer]).encode())
        return digest.hexdigest()[:16]


def read_problems(source: Source, *, template: str = "{prompt}", gold: Callable[[str], str] = str.strip) -> Problems:
    """Read and split the rows. `template` is the default template; `gold` extracts the answer from its column."""
    settings = source.settings
    build = Builder(settings, template, gold)
    rows = source.read(settings.split)
    problems = build.all(rows)
    if settings.heldout:
        other = settings.heldout if Path(settings.heldout).suffix else source.data
        split = settings.split if Path(settings.heldout).suffix else settings.heldout
        if settings.heldout == source.data:
            raise GrpoError(
                f"field dataset.heldout: {source.data} has the training rows; name another file, or leave the field "
                "empty to hold out a share of the rows (dataset.heldout_share)"
            )
        without_splits = Path(source.data).is_file() if source.rows is None else "" in source.rows
        if other == source.data and without_splits:
            kind = "a file" if source.rows is None else "a list"
            raise GrpoError(
                f"field dataset.heldout: {settings.heldout!r} is a split, but {source.data} is {kind} without splits; "
                "name a file of held-out rows"
            )
        rows = source.read(split) if other == source.data else read_rows(other, split, settings.subset)
        return Problems(problems, build.all(rows))
    share = settings.heldout_share
    train = [problem for problem in problems if not _held_out(problem, share)]
    heldout = [problem for problem in problems if _held_out(problem, share)]
    for side, name in ((train, "training"), (heldout, "held-out")):
        if not side:
            where = f" in {source.data}" if source.rows is None else ""
            instead = (
                "name a file or split with --dataset.heldout"
                if source.rows is None
                else ('pass data={"train": rows, "test": others} with dataset={"heldout": "test"}')
            )
            raise GrpoError(
                f"field dataset.heldout_share: {share:g} leaves no {name} rows of the {len(problems)}{where}; "
                f"add rows, change the share, or {instead}"
            )
    return Problems(train, heldout)


def written_answers(source: Source) -> list[Problem]:
    """All rows as problems whose answer is the full written text, for supervised fine-tuning."""
    settings = source.settings
    rows = [_prompt_and_answer(row) for row in source.read(settings.split)]
    return Builder(settings, "{prompt}", str, WRITTEN_COLUMNS).all(rows)


def _prompt_and_answer(row: DataRow) -> DataRow:
    """The row with the assistant's last turn, of `messages` or `completion`, as its answer."""
    columns = dict(row.columns)
    if _is_conversation(columns.get("completion")):
        columns["completion"] = columns["completion"][-1]["content"]
    turns: Any = columns.get("messages")
    if _is_conversation(turns) and "prompt" not in columns:
        if len(turns) < 2 or turns[-1]["role"] != "assistant":
            raise GrpoError(f'{row.place}: column "messages" must have two turns or more, the last of the assistant')
        columns |= {"prompt": turns[:-1], "answer": turns[-1]["content"]}
    return DataRow(row.place, columns)


def _held_out(problem: Problem, share: float) -> bool:
    digest = hashlib.sha256(problem.prompt.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


@dataclass(frozen=True)
class Builder:
    """Builds problems from rows by the settings of `[dataset]`."""

    settings: Dataset
    template: str
    gold: Callable[[str], str]
    answers: Sequence[str] = ANSWER_COLUMNS

    def all(self, rows: Sequence[DataRow]) -> list[Problem]:
        first = rows[0]
        prompt = self._column(first, "prompt", self.settings.prompt, PROMPT_COLUMNS)
        answer = self._column(first, "answer", self.settings.answer, self.answers)
        return [self._problem(row, prompt, answer) for row in rows]

    def row_as_problem(self, row: DataRow) -> Problem:
        return self._problem(row, "prompt", "answer")

    def _column(self, row: DataRow, use: str, named: str, usual: Iterable[str]) -> str:
        for name in [named] if named else usual:
            if name in row.columns:
                return name
        file = re.sub(r":\d+$|\[\d+\]$", "", row.place)
        wanted = f"no column {named!r}" if named else f"no column named {', '.join(usual)}"
        raise GrpoError(
            f"field dataset.{use}: {wanted} in {file}, which has {', '.join(row.columns)}; "
            f"name one with --dataset.{use}"
        )

    def _problem(self, row: DataRow, prompt: str, answer: str) -> Problem:
        gold = self._gold(row, answer)
        question = _value(row, prompt)
        if _is_conversation(question):
            text = "\n\n".join(message["content"] for message in question)
            turns = tuple({"role": str(turn["role"]), "content": str(turn["content"])} for turn in question)
            return Problem(row.place, text, gold, turns if self.settings.chat else (), row.columns, conversational=True)
        if not isinstance(question, str) or not question.strip():
            raise GrpoError(f'{row.place}: column "{prompt}" must be text that is not empty; got {shown(question)}')
        text = self._filled(row, {**row.columns, "prompt": question})
        messages = chat(text, self.settings.system_prompt) if self.settings.chat else ()
        plain = f"{self.settings.system_prompt}\n\n{text}" if self.settings.system_prompt else text
        return Problem(row.place, plain, gold, messages, row.columns)

    def _gold(self, row: DataRow, column: str) -> str:
        value = _value(row, column)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, bool):
            value = "yes" if value else "no"
        if not isinstance(value, str | int | float) or not (text := self.gold(str(value))):
            raise GrpoError(f'{row.place}: column "{column}" has no gold answer; got {shown(value)}')
        return text

    def _filled(self, row: DataRow, values: Mapping[str, Any]) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                known = ", ".join(row.columns)
                raise GrpoError(f"field dataset.template: {found[0]} names no column; the columns are {known}")
            return str(values[found[1]])

        template = self.settings.template.replace("\\n", "\n") or self.template
        return re.sub(r"\{(\w+)\}", value, template)


def typed_problem(source: Source, template: str, question: str) -> Problem:
    """A typed question with the template and system prompt of the rows; it has no gold answer."""
    columns = dict.fromkeys(filter(None, (source.settings.prompt, *PROMPT_COLUMNS)), question)
    problem = Builder(source.settings, template, str).row_as_problem(DataRow("typed", {**columns, "answer": "-"}))
    return replace(problem, answer="", columns={})


def other_answers(problem: Problem, settings: Dataset) -> tuple[str, ...]:
    """The further right answers where the gold answer is a list."""
    value = _mapped(problem, settings.answer, ANSWER_COLUMNS)
    return tuple(str(each) for each in value[1:]) if isinstance(value, list) else ()


def question_of(problem: Problem, settings: Dataset) -> Any:
    """The row's question, before the template."""
    return _mapped(problem, settings.prompt, PROMPT_COLUMNS)


def _mapped(problem: Problem, named: str, usual: Iterable[str]) -> Any:
    return next((problem.columns[name] for name in ([named] if named else usual) if name in problem.columns), None)


def _value(row: DataRow, column: str) -> Any:
    if column not in row.columns:
        raise GrpoError(f'{row.place}: has no column "{column}"; it has {", ".join(row.columns)}')
    return row.columns[column]


def _is_conversation(value: Any) -> bool:
    return (
        bool(value)
        and isinstance(value, list)
        and all(isinstance(turn, Mapping) and {"role", "content"} <= set(turn) for turn in value)
    )
