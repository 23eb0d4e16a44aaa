"""Hashes of rows: the ids of problems, and the fingerprint of a dataset, one hash for each column."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo.errors import GrpoError
from grpo.types import Problem

ID_LENGTH = 12
"""Hexadecimal digits of an id. Two rows with the same digits are counted like equal rows, so ids stay unique."""


def row_ids(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A hash of each row, given as (place, columns); equal rows are numbered.

    >>> row_ids([("a.jsonl:1", {"ask": "6*7="}), ("a.jsonl:2", {"ask": "6*8="}), ("b.jsonl:1", {"ask": "6*7="})])
    ['cf2cf752a97d', 'd6dac39a41dc', 'cf2cf752a97d-2']
    """
    seen: Counter[str] = Counter()
    ids = []
    for place, columns in rows:
        key = hashlib.sha256(canonical(columns, place)).hexdigest()[:ID_LENGTH]
        seen[key] += 1
        ids.append(key if seen[key] == 1 else f"{key}-{seen[key]}")
    return ids


def column_hashes(problems: Sequence[Problem], side: str = "") -> dict[str, str]:
    """Number of rows, and a hash of each column; a row without the column counts as such.

    >>> column_hashes([Problem("a", "6*7=", "42", columns={"ask": "6*7="})], side="held-out ")
    {'held-out rows': '1', 'held-out column ask': 'b3d9a07aec05d1be'}
    """
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    hashes = {f"{side}rows": str(len(problems))}
    for name in names:
        digest = hashlib.sha256()
        for problem in problems:
            value = [problem.columns[name]] if name in problem.columns else []
            digest.update(hashlib.sha256(canonical(value, problem.label)).digest())
        hashes[f"{side}column {name}"] = digest.hexdigest()[:16]
    return hashes


def canonical(value: Any, place: str) -> bytes:
    """The value as JSON with sorted keys, the same in every process.

    >>> canonical({"b": [1, None], "a": b"6"}, "rows.jsonl:1")
    b'{"a": ["bytes", "36"], "b": [1, null]}'
    """
    try:
        return json.dumps(value, sort_keys=True, default=_as_json).encode()
    except Exception as error:  # border: rows handed over in Python may hold any object
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise GrpoError(
            f"{place}: has a value that cannot be stored ({reason}); use text, numbers and lists"
        ) from error


def _as_json(value: Any) -> Any:
    """A value that JSON lacks: a date, bytes, an array, or another object that can be pickled."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray):
        return "bytes", value.hex()
    if isinstance(value, set | frozenset):
        return "set", sorted(value, key=repr)
    if hasattr(value, "tolist"):  # a number, an array or a tensor: equal to the plain number or list
        return value.tolist()
    if hasattr(value, "isoformat"):
        return type(value).__name__, value.isoformat()
    return type(value).__name__, pickle.dumps(value, protocol=4).hex()
