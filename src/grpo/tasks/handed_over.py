"""Rows and tasks that a caller hands over as Python objects, and the names a record stores for them.

A record names what was handed over with the prefix `python:`, as in `python:Backwards` or `python:80 rows`. It cannot
be loaded from that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grpo.errors import GrpoError

PREFIX = "python:"
EXAMPLE = '{"prompt": "6*7=", "answer": "42"}'

Rows = Mapping[str, list[dict[str, Any]]]
"""Rows by split; rows without splits are all under the empty name."""


def take_rows(data: Any) -> Rows:
    """The rows of a list of dicts, a `datasets.Dataset`, a pandas data frame, or a mapping from splits to these."""
    if isinstance(data, Mapping):
        return {str(split): _table(rows, f"data[{split!r}]") for split, rows in data.items()}
    return {"": _table(data, "data")}


def take_heldout(data: Any) -> Rows:
    """The same for held-out rows, which have one split."""
    if not isinstance(data, Mapping):
        return {"": _table(data, "eval_data")}
    if len(data) != 1:
        splits = ", ".join(map(str, data)) or "none"
        raise GrpoError(f"field eval_data: has the splits {splits}; hand over one of them, such as data['test']")
    [rows] = data.values()
    return take_heldout(rows)


def _table(rows: Any, place: str) -> list[dict[str, Any]]:
    field = place.partition("[")[0]
    if any(base.__name__ == "DataFrame" and base.__module__.startswith("pandas") for base in type(rows).__mro__):
        rows = _of_frame(rows, field)
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        kind = type(rows).__name__
        raise GrpoError(f"field {field}: {place} is of type {kind}; give a list of dicts such as {EXAMPLE}")
    taken = []
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            raise GrpoError(f"field {field}: {place}[{i}] is of type {kind}; give a dict such as {EXAMPLE}")
        taken.append({str(name): value for name, value in row.items()})
    if not taken:
        raise GrpoError(f"field {field}: {place} has no rows")
    return taken


def _of_frame(frame: Any, field: str) -> list[dict[str, Any]]:
    """Rows of a pandas data frame, in which lists of a Parquet file are arrays, and missing values NaN: None here, as
    in a `datasets.Dataset`."""
    if not frame.columns.is_unique:
        raise GrpoError(f"field {field}: the data frame has several columns of one name; rename the others")
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows]


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
