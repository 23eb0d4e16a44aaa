"""Reads the rows of a file or dataset: JSONL, JSON, CSV, TSV, Parquet, a Hugging Face dataset by id or folder."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.handed_over import refuse_recorded

INSTALL = "pip install 'grpo-lab[tasks]'"


@dataclass(frozen=True)
class DataRow:
    """One row of a file or dataset, and its place there."""

    place: str
    columns: Mapping[str, Any]


def read_rows(data: str, split: str = "train", subset: str = "", field: str = "data") -> list[DataRow]:
    """All rows of a file or dataset, which the `field` of the config names."""
    refuse_recorded(field, data, f"name a file with --{field}")
    path = Path(data)
    if path.is_file():
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise GrpoError(f"field {field}: {data} has an unknown ending; known are {', '.join(READERS)}")
        rows = reader(path)
    elif path.is_dir() or (re.fullmatch(r"[\w.-]+/[\w.-]+", data) and not path.suffix):
        rows = _huggingface(data, split, subset, field)
    else:
        raise GrpoError(f"field {field}: no file {data}; name a file, or a Hugging Face dataset (owner/name)")
    if not rows:
        raise GrpoError(f"field {field}: {data} has no rows")
    return rows


def _jsonl(path: Path) -> list[DataRow]:
    # Decoded line by line, so that the message about a bad byte names its line.
    lines = enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    return [DataRow(f"{path}:{number}", _object(line, f"{path}:{number}")) for number, line in lines if line.strip()]


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # border: malformed file
        raise GrpoError(f"{place}: not a line of JSON in UTF-8 ({error})") from None
    if not isinstance(value, dict):
        raise GrpoError(f'{place}: expected an object like {{"question": "...", "answer": "..."}}; got {shown(value)}')
    return value


def _json(path: Path) -> list[DataRow]:
    try:
        values = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # border: malformed file
        line = getattr(error, "lineno", 1)
        raise GrpoError(f"{path}:{line}: not JSON in UTF-8 ({error})") from None
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise GrpoError(f"{path}: expected an array of objects; name a file with one object per line .jsonl")
    return [DataRow(f"{path}:{number}", value) for number, value in enumerate(values, 1)]


def _table(path: Path) -> list[DataRow]:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            if repeated := [name for name, count in Counter(reader.fieldnames or ()).items() if name and count > 1]:
                raise GrpoError(f"{path}:1: has more than one column {repeated[0]!r}; rename the others")
            for columns in reader:
                if None in columns or None in columns.values():
                    expected = len(reader.fieldnames or ())
                    raise GrpoError(f"{path}:{reader.line_num}: expected {expected} fields, as in the first line")
                rows.append(DataRow(f"{path}:{reader.line_num}", columns))
    except (csv.Error, UnicodeDecodeError) as error:  # border: malformed file
        raise GrpoError(f"{path}: line {len(rows) + 2} or later is not a valid row in UTF-8 ({error})") from None
    return rows


def _parquet(path: Path) -> list[DataRow]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise GrpoError(f"field data: reading {path} needs pyarrow; {INSTALL}") from None
    try:
        values = parquet.read_table(path).to_pylist()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # border: malformed file
        raise GrpoError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); write it again") from None
    return [DataRow(f"{path}:{number}", value) for number, value in enumerate(values, 1)]


def _huggingface(name: str, split: str, subset: str, field: str) -> list[DataRow]:
    try:
        import datasets
    except ImportError:
        raise GrpoError(f"field {field}: the dataset {name} needs the library datasets; {INSTALL}") from None
    datasets.disable_progress_bars()
    folder = Path(name)
    try:
        if any((folder / file).is_file() for file in ("state.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(name)
        elif folder.is_dir():
            _refuse_empty(folder, field)
            loaded = datasets.load_dataset(str(folder.resolve()), subset or None)
        else:
            from grpo.model.hub.network import skip_unreachable_hub

            skip_unreachable_hub()
            loaded = datasets.load_dataset(name, subset or None)
    except GrpoError:
        raise
    except Exception as error:  # border: the hub, the network and other people's files raise anything
        cause = error.__cause__ or error  # the outer error of a malformed file says only that there was one
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise GrpoError(
            f"field {field}: cannot load the dataset {name}: {reason}; or name a file with --{field}"
        ) from error
    if isinstance(loaded, dict):
        if field != "data" and len(loaded) == 1:
            [split] = loaded  # a dataset of held-out rows may name its only split as it likes
        if split not in loaded:
            raise GrpoError(f"field dataset.split: {name} has no split {split!r}; it has {', '.join(loaded)}")
        loaded = loaded[split]
    return [DataRow(f"{name}[{split}]:{number}", row) for number, row in enumerate(loaded, 1)]


def _refuse_empty(folder: Path, field: str) -> None:
    """Refuse a folder without a file of rows. The library would read any text file as rows of text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not any(path.suffix.lower() in READERS for path in files):
        found = ", ".join(sorted(path.name for path in files)[:5]) or "nothing"
        raise GrpoError(
            f"field {field}: the folder {folder} has no file that ends in {', '.join(READERS)} and no saved dataset; "
            f"it has {found}"
        )


READERS: dict[str, Callable[[Path], list[DataRow]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _table,
    ".tsv": _table,
    ".parquet": _parquet,
}


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False, skipkeys=True)
    except (ValueError, RecursionError):  # border: rows handed over in Python may hold any object
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
