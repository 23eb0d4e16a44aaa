"""Search of a run's completions by text or pattern, reward, advantage, length and step, one page per request."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import regex

from grpo.errors import GrpoError, one_line
from grpo.record.store import Run

PAGE = 60
STEPS_AT_ONCE = 50
ROWS_AT_ONCE = 400
CHARACTERS = 200
"""Shown of each turn of an episode; also the most that may be searched for."""
TEXT, PROMPT = 600, 300
"""Characters shown of a completion and of its prompt."""
TURNS = (
    "FROM turns WHERE (turns.step, turns.group_index, turns.sample_index) = "
    "(completions.step, completions.group_index, completions.sample_index)"
)
SECONDS = 1.0
"""Time limit of one request; the next request continues."""
PATTERN_SECONDS = 1.5
"""Time limit of a regular expression in one request; it is given up then."""
PATTERN_PARTS = 10_000
"""Most parts of a regular expression with its {n} written out; compiling it takes memory and time for each."""
PIECES = regex.compile(
    r"(?<call>\(\?(?:R|[-+]?\d|&|P>))|\{\s*(?<count>\d+)\s*(?:,\s*\d*\s*)?\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    regex.DOTALL,
)
"""Pieces of a regular expression: a call of a group, a count, or an escape, a set or a character."""

FILTERS = {
    "right": "correct",
    "wrong": "NOT correct",
    "unscored": "reward IS NULL",
    "cut": "finish != 'stop'",
    "above": "advantage > 0",
    "below": "advantage < 0",
    "level": "advantage = 0",
}
RANGES = ("step", "reward", "length", "advantage")
"""Columns with a smallest and a largest value: `reward_min`, `reward_max`, …"""
ORDERS = {"newest": "step DESC", "oldest": "step"} | {
    name: f"{column} {way} NULLS LAST"
    for column in ("reward", "length", "advantage")
    for name, way in ((column, "ASC"), (f"-{column}", "DESC"))
}
"""Order of the results; a minus sign: the highest first."""


@dataclass(frozen=True)
class Query:
    text: str = ""
    pattern: bool = False
    """Whether the text is a regular expression."""
    filters: tuple[str, ...] = ()
    order: str = "newest"
    limits: Mapping[str, float] = field(default_factory=dict)
    """By name: reward_min, step_max, …"""
    begin: int | None = None
    """Where to continue: the step, or the number of results so far where they are sorted by a value."""

    whole: bool = False
    """Whether the results have their whole texts, for a page that searches them by itself."""

    @classmethod
    def parse(cls, wanted: Mapping[str, str], begin: int | None) -> Self:
        text, order = wanted.get("text", ""), wanted.get("order", "newest")
        if len(text) > CHARACTERS:
            raise GrpoError(f"text: at most {CHARACTERS} characters; got {len(text)}")
        if order not in ORDERS:
            raise GrpoError(f"order: expected one of {', '.join(ORDERS)}; got {one_line(order, 40)!r}")
        filters = tuple(name for name in wanted.get("filters", "").split(",") if name in FILTERS)
        names = [f"{column}_{end}" for column in RANGES for end in ("min", "max")]
        limits = {name: _number(name, wanted[name]) for name in names if wanted.get(name)}
        return cls(text, wanted.get("regex") == "1", filters, order, limits, begin, wanted.get("whole") == "1")

    def conditions(self) -> tuple[list[str], list[Any]]:
        """SQL conditions with their parameters; a pattern is not among them."""
        found = [FILTERS[name] for name in self.filters]
        values: list[Any] = []
        for name, limit in self.limits.items():
            column, _, end = name.rpartition("_")
            found.append(f"{column} {'>=' if end == 'min' else '<='} ?")
            values.append(limit)
        if self.text and not self.pattern:
            found.append(
                "(instr(lower(text), lower(?)) OR instr(lower(prompt), lower(?)) OR "
                f"EXISTS (SELECT 1 {TURNS} AND instr(lower(turns.text), lower(?))))"
            )
            values += [self.text] * 3
        return found, values


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise GrpoError(f"{name}: expected a number; got {one_line(text, 40)!r}")
    return value


class Pattern:
    """A regular expression with a time limit for all texts it is tried on; case does not matter."""

    def __init__(self, text: str):
        if _parts(text) > PATTERN_PARTS:
            raise GrpoError(
                f"text: this regular expression repeats more than {PATTERN_PARTS:,} parts; use smaller {{n}}"
            )
        try:
            self.compiled = regex.compile(text, regex.IGNORECASE)
        except regex.error as problem:
            raise GrpoError(f"text: not a regular expression: {problem}") from problem
        except (MemoryError, RecursionError):  # border: a pattern of the reader
            raise GrpoError("text: this regular expression is too large; use a shorter one") from None
        self.end = time.monotonic() + PATTERN_SECONDS

    def matches(self, text: str) -> bool:
        try:
            # Other threads of the server continue meanwhile.
            left = max(1e-3, self.end - time.monotonic())
            return self.compiled.search(text, timeout=left, concurrent=True) is not None
        except MemoryError:  # border: a pattern of the reader
            raise GrpoError("text: this regular expression takes too much memory; use a simpler one") from None
        except TimeoutError:
            raise GrpoError(
                "text: this regular expression takes too long; avoid a repeat inside a repeat, such as (a+)+"
            ) from None


def _parts(pattern: str) -> int:
    """How many parts a regular expression has with its counts written out. One that calls its groups is refused.

    >>> _parts("ab{3}"), _parts("(ab){3}c"), _parts(r"[(]{2}\\(")
    (4, 7, 3)
    """
    sizes, last = [0], 0  # of the open groups, and of the part that a count would repeat
    for piece in PIECES.finditer(pattern):
        if piece["call"]:
            raise GrpoError("text: a regular expression that calls its groups, such as (?R) or (?1), cannot be used")
        if piece["count"]:
            # What is optional is not written out: {2,5} is two parts and a limit.
            more = last * (max(1, int(piece["count"])) - 1)
            sizes[-1] += more
            last += more
        elif piece[0] == "(":
            sizes.append(0)
        elif piece[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def search(run: Run, query: Query) -> dict[str, Any]:
    """One page of results; `next` is where the next page begins, None at the end."""
    pages = _by_step if query.order in ("newest", "oldest") else _by_value
    begun = time.monotonic()
    matches = _matcher(query)
    rows: list[dict[str, Any]] = []
    at = query.begin
    for found, continues in pages(run, query):
        rows += [row for row in map(_decoded, found) if matches(row)]
        at = continues
        if at is None or len(rows) >= PAGE or time.monotonic() - begun > SECONDS:
            break
    else:
        at = None
    return {"rows": rows if query.whole else [shown(row) for row in rows], "next": at}


def _matcher(query: Query) -> Callable[[Mapping[str, Any]], bool]:
    if not query.text or not query.pattern:
        return lambda row: True
    pattern = Pattern(query.text)
    return lambda row: any(map(pattern.matches, (row["text"], row["prompt"], *(turn["text"] for turn in row["turns"]))))


Rows = list[dict[str, Any]]


def _by_step(run: Run, query: Query) -> Iterator[tuple[Rows, int | None]]:
    """Rows of some whole steps, and the step after them; None after the last."""
    recorded, newest = run.last_step(), query.order == "newest"
    if recorded is None:
        return
    first = max(0, math.ceil(query.limits.get("step_min", 0)))
    last = min(recorded, math.floor(query.limits.get("step_max", recorded)))
    at = (last if newest else first) if query.begin is None else query.begin
    # One step at a time while there are hits, more steps where there are none.
    width = 1
    while first <= at <= last:
        low, high = (max(first, at - width + 1), at) if newest else (at, min(last, at + width - 1))
        found = _select(run, query, "step BETWEEN ? AND ?", low, high)
        at = low - 1 if newest else high + 1
        width = 1 if found else min(2 * width, STEPS_AT_ONCE)
        yield found, at if first <= at <= last else None


def _by_value(run: Run, query: Query) -> Iterator[tuple[Rows, int | None]]:
    """Rows sorted by a value, and how many were read up to them; None after the last."""
    at = query.begin or 0
    count = ROWS_AT_ONCE if query.pattern else PAGE
    while True:
        found = _select(run, query, "true", limit=f"LIMIT {count} OFFSET {at}")
        at += len(found)
        yield found, at if len(found) == count else None
        if len(found) < count:
            return


def _select(run: Run, query: Query, where: str, *parameters: Any, limit: str = "") -> Rows:
    conditions, values = query.conditions()
    order = f"ORDER BY {ORDERS[query.order]}, step DESC, group_index, sample_index"
    # A pattern is tried on whole turns.
    said = "turns.text" if query.pattern or query.whole else f"substr(turns.text, 1, {CHARACTERS})"
    # Only keys are sorted: texts of a whole run are too many.
    table = f"completions{' JOIN groups USING (step, group_index)' if query.text else ''}"
    statement = (
        "SELECT step, group_index, sample_index, prompt, answer, text, length, finish, reward, correct, advantage, "
        f"(SELECT json_group_array(json_array(who, said)) FROM (SELECT who, {said} AS said {TURNS} ORDER BY turn)) "
        f"AS turns FROM (SELECT step, group_index, sample_index FROM {table} "
        f"WHERE {' AND '.join([where, *conditions])} {order} {limit}) "
        f"JOIN completions USING (step, group_index, sample_index) JOIN groups USING (step, group_index) {order}"
    )
    return run.select(statement, *parameters, *values)


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    turns = [{"who": who, "text": text} for who, text in json.loads(row["turns"])]
    return row | {"right": bool(row["correct"]), "turns": turns}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the beginnings of its texts. Equal to `shown` of offline/search.js."""
    return {
        **row,
        "text": row["text"][:TEXT],
        "prompt": row["prompt"][:PROMPT],
        "turns": [{**turn, "text": turn["text"][:CHARACTERS]} for turn in row["turns"]],
    }
