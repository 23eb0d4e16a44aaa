"""Rows and tasks that a caller hands over as Python objects, and the names a record stores for them.

A record names what was handed over with the prefix `python:`, as in `python:Backwards` or `python:80 rows`. It cannot
be loaded from that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from grpo.errors import GrpoError

PREFIX = "python:"
EXAMPLE = '{"prompt": "6*7=", "answer": "42"}'

Rows = Mapping[str, list[dict[str, Any]]]
"""Rows by split; rows without splits are all under the empty name."""


def take_rows(data: Any) -> Rows:
    """The rows of a list of dicts, a `datasets.Dataset`, or a mapping from splits to either (`DatasetDict`)."""
    if isinstance(data, Mapping):
        return {str(split): _table(rows, f"data[{split!r}]") for split, rows in data.items()}
    return {"": _table(data, "data")}


def _table(rows: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise GrpoError(f"field data: {place} is of type {type(rows).__name__}; give a list of dicts such as {EXAMPLE}")
    taken = []
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise GrpoError(f"field data: {place}[{i}] is of type {type(row).__name__}; give a dict such as {EXAMPLE}")
        taken.append({str(name): value for name, value in row.items()})
    if not taken:
        raise GrpoError(f"field data: {place} has no rows")
    return taken


def name_of_rows(rows: Rows) -> str:
    """
    >>> name_of_rows({"": [{"prompt": "6*7=", "answer": "42"}]})
    'python:1 rows'
    """
    return f"{PREFIX}{sum(map(len, rows.values()))} rows"


def refuse_recorded(field: str, name: str, advice: str) -> None:
    """Refuses a name that stands for an object of another Python process."""
    if name.startswith(PREFIX):
        what = name.removeprefix(PREFIX)
        raise GrpoError(f"field {field}: {what} came from Python and cannot be stored in a record; {advice}")
