"""Rows of data as problems: where they come from, and which are held out.

A problem's id is a hash of its row, so that its completions do not depend on where the row comes from; its place, such
as `rows.jsonl:17`, is for messages. A hash of the prompt decides which rows are held out, so the split stays when rows
are added or sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks.builder import ANSWER_COLUMNS, PROMPT_COLUMNS, Builder, mapped, require_golds
from grpo.tasks.conversation import is_conversation, read_conversation
from grpo.tasks.handed_over import Rows
from grpo.tasks.readers import DataRow, read_rows
from grpo.tasks.row_hash import column_hashes
from grpo.types import Problem

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
    def fingerprint(self) -> Mapping[str, str]:
        """Hashes of all rows, by column: a resumed run must have the same."""
        return {**column_hashes(self.train), **column_hashes(self.heldout, "held-out ")}


def read_problems(source: Source, *, template: str = "{prompt}", gold: Callable[[str], str] = str.strip) -> Problems:
    """Read and split the rows. `template` is the default template; `gold` extracts the answer from its column."""
    settings = source.settings
    builder = Builder(settings, template, gold)
    rows = source.read(settings.split)
    problems = builder.build(rows)
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
        return Problems(problems, builder.build(rows, apart=True))
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
    problems = Builder(settings, "{prompt}", str, WRITTEN_COLUMNS).build(rows)
    require_golds(problems, settings, WRITTEN_COLUMNS)
    return problems


def _prompt_and_answer(row: DataRow) -> DataRow:
    """The row with the assistant's last turn, of `messages` or `completion`, as its answer."""
    columns = dict(row.columns)
    if is_conversation(turns := columns.get("completion")):
        columns["completion"] = read_conversation(turns, row.place, "completion")[-1]["content"]
    if is_conversation(turns := columns.get("messages")) and "prompt" not in columns:
        messages = read_conversation(turns, row.place, "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise GrpoError(f'{row.place}: column "messages" must have two turns or more, the last of the assistant')
        columns |= {"prompt": messages[:-1], "answer": messages[-1]["content"]}
    return DataRow(row.place, columns)


def _held_out(problem: Problem, share: float) -> bool:
    digest = hashlib.sha256(problem.prompt.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def typed_problem(source: Source, template: str, question: str) -> Problem:
    """A typed question with the template and system prompt of the rows; it has no gold answer."""
    columns = dict.fromkeys(filter(None, (source.settings.prompt, *PROMPT_COLUMNS)), question)
    builder = Builder(source.settings, template, str)
    return replace(builder.problem(DataRow("a typed question", columns), "typed", "prompt", ""), columns={}, place="")


def other_answers(problem: Problem, settings: Dataset) -> tuple[str, ...]:
    """The further right answers where the gold answer is a list."""
    value = mapped(problem, settings.answer, ANSWER_COLUMNS)
    return tuple(str(each) for each in value[1:]) if isinstance(value, list) else ()


def question_of(problem: Problem, settings: Dataset) -> Any:
    """The row's question, before the template."""
    return mapped(problem, settings.prompt, PROMPT_COLUMNS)
