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
from grpo.tasks.builder import (
    ANSWER_COLUMNS,
    PROMPT_COLUMNS,
    Builder,
    accepted,
    mapped,
    notes_on_prompts,
    require_golds,
)
from grpo.tasks.conversation import Messages, read_tools
from grpo.tasks.handed_over import Rows
from grpo.tasks.prompt_limit import PromptLimit
from grpo.tasks.readers import DataRow, read_rows
from grpo.tasks.row_hash import column_hashes
from grpo.tasks.written import WRITTEN_COLUMNS, WrittenRows
from grpo.types import Problem


@dataclass(frozen=True)
class Source:
    """A file or dataset, and the settings that read it."""

    data: str = ""
    settings: Dataset = field(default_factory=Dataset)
    rows: Rows | None = None
    """Rows handed over in Python; `data` is then only their name."""
    heldout_rows: Rows | None = None
    """Held-out rows handed over in Python; `settings.heldout` is then only their name."""
    model: str = ""
    """The model whose tokenizer counts the tokens of prompts; empty: none are counted."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that prompts describe."""
    recorded: bool = False
    """The settings are those of a run. Earlier versions took settings of rows for any task."""

    @property
    def notes(self) -> list[str]:
        """Settings without effect. Held-out rows may come from a dataset that has splits."""
        if self.settings.heldout:
            is_usual = self.settings.heldout_share in (0, Dataset.heldout_share)  # grpo check sets 0
            return [] if is_usual else ["dataset.heldout_share has no effect: dataset.heldout names the held-out rows"]
        if self.has_splits:
            return []
        changed = [name for name in ("split", "subset") if getattr(self.settings, name) != getattr(Dataset(), name)]
        return [f"dataset.{name} has no effect: {self.data} has no {name}s; all rows are read" for name in changed]

    @property
    def has_splits(self) -> bool:
        """False for a file, and for a list of rows."""
        return not Path(self.data).is_file() if self.rows is None else "" not in self.rows

    def read(self, split: str) -> list[DataRow]:
        """All rows of a split."""
        if self.rows is None:
            return read_rows(self.data, split, self.settings.subset)
        if "" in self.rows:
            return [DataRow(f"data[{i}]", row) for i, row in enumerate(self.rows[""])]
        if split not in self.rows:
            raise GrpoError(f"field dataset.split: data has no split {split!r}; it has {', '.join(self.rows)}")
        return [DataRow(f"data[{split!r}][{i}]", row) for i, row in enumerate(self.rows[split])]

    def read_heldout(self) -> list[DataRow]:
        """The rows of `dataset.heldout`: those handed over, a file or dataset of its own, or another split."""
        heldout = self.settings.heldout
        if self.heldout_rows is not None:
            [rows] = self.heldout_rows.values()
            return [DataRow(f"eval_data[{i}]", row) for i, row in enumerate(rows)]
        if not Path(heldout).suffix and "/" not in heldout:
            self._refuse_split(heldout)
            return self.read(heldout)
        if Path(heldout).resolve() == Path(self.data).resolve():
            raise GrpoError(
                f"field dataset.heldout: {heldout} has the training rows; name another file, or leave the field "
                "empty to hold out a share of the rows (dataset.heldout_share)"
            )
        return read_rows(heldout, self.settings.split, self.settings.subset, "dataset.heldout")

    def _refuse_split(self, split: str) -> None:
        if not self.has_splits:
            kind = "a file" if self.rows is None else "a list"
            raise GrpoError(
                f"field dataset.heldout: {split!r} is a split, but {self.data} is {kind} without splits; name a file "
                "of held-out rows, or pass eval_data in Python"
            )

    def or_else(self, data: str, **settings: Any) -> Source:
        """This source, or the given one where this names no data. Settings that are not the defaults stay."""
        if self.data:
            return self
        unset = {name: value for name, value in settings.items() if not getattr(self.settings, name)}
        return replace(self, data=data, settings=replace(self.settings, **unset))


@dataclass(frozen=True)
class Problems:
    """Training problems and held-out problems."""

    train: Sequence[Problem]
    heldout: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    """Lines to report when a run starts."""
    conversations: Mapping[str, Messages] = field(default_factory=dict)
    """By place: what a training row has written from the assistant's first turn on, if that is more than one text."""

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Hashes of all rows, by column: a resumed run must have the same."""
        return {**column_hashes(self.train), **column_hashes(self.heldout, "held-out ")}


def read_problems(source: Source, *, template: str = "{prompt}", gold: Callable[[str], str] = str.strip) -> Problems:
    """Read and split the rows; a share of 0 holds out none. `template` is the default template; `gold` extracts the
    answer from its column. Held-out problems are in the order of their hashes: an evaluation takes the first ones, and
    files are often sorted, such as by subject."""
    settings = source.settings
    builder = Builder(settings, template, gold)
    limit = PromptLimit(settings, source.model, source.tools)
    rows = source.read(settings.split)
    problems = limit.within(builder.build(rows))
    notes = [*source.notes, *notes_on_prompts(rows, settings)]
    if settings.heldout:
        heldout = limit.within(builder.build(source.read_heldout(), apart=True), "held-out rows")
        return Problems(problems, sorted(heldout, key=_place), [*notes, *limit.notes])
    share = settings.heldout_share
    if problems and not share:
        return Problems(problems, notes=[*notes, *limit.notes])
    places = [_place(problem) for problem in problems]
    # Of a few rows the share may be none: then the first question by its hash is held out.
    bound = max(share, min(places)) if len(set(places)) > 1 else share
    train = [problem for problem, place in zip(problems, places, strict=True) if place > bound]
    heldout = [problem for problem, place in zip(problems, places, strict=True) if place <= bound]
    for side, name in ((train, "training"), (heldout, "held-out")):
        if not side:
            where = f" in {source.data}" if source.rows is None else ""
            instead = (
                "name a file or split with --dataset.heldout" if source.rows is None else "pass others as eval_data"
            )
            left_out = "".join(f" ({note})" for note in limit.notes)
            raise GrpoError(
                f"field dataset.heldout_share: {share:g} leaves no {name} rows of the {len(problems)}{where}"
                f"{left_out}; add rows, change the share, or {instead}"
            )
    return Problems(train, sorted(heldout, key=_place), [*notes, *limit.notes])


def written_answers(source: Source) -> Problems:
    """All rows as training problems whose answer is the full written text, for supervised fine-tuning."""
    written = WrittenRows.of(source.read(source.settings.split), source.settings)
    rows, settings = written.rows, written.settings
    problems = Builder(settings, "{prompt}", str, WRITTEN_COLUMNS).build(rows)
    problems = [replace(problem, tools=read_tools(problem.columns.get("tools"), problem.place)) for problem in problems]
    require_golds(problems, settings, WRITTEN_COLUMNS)
    limit = PromptLimit(settings, source.model, source.tools)
    problems = limit.within(problems)
    notes = [*source.notes, *notes_on_prompts(rows, source.settings), *written.notes, *limit.notes]
    return Problems(problems, notes=notes, conversations=written.conversations)


def _place(problem: Problem) -> float:
    """A number from 0 to 1, by a hash of the prompt: equal questions are on the same side of every split."""
    digest = hashlib.sha256(problem.prompt.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def typed_problem(source: Source, template: str, question: str) -> Problem:
    """A typed question with the template and system prompt of the rows; it has no gold answer."""
    columns = dict.fromkeys(filter(None, (source.settings.prompt, *PROMPT_COLUMNS)), question)
    builder = Builder(source.settings, template, str)
    return replace(builder.problem(DataRow("a typed question", columns), "typed", "prompt", ""), columns={}, place="")


def other_answers(problem: Problem, settings: Dataset) -> tuple[str, ...]:
    """The further right answers where the gold answer is a list."""
    return tuple(filter(str.strip, accepted(mapped(problem, settings.answer, ANSWER_COLUMNS))))[1:]


def question_of(problem: Problem, settings: Dataset) -> Any:
    """The row's question, before the template."""
    return mapped(problem, settings.prompt, PROMPT_COLUMNS)
