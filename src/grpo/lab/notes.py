"""Tags and a note that a person gives a run, in notes.json beside its record."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError

FILE = "notes.json"
MOST_TAGS = 20
MOST_TAG_LENGTH = 40
MOST_NOTE_LENGTH = 4000
MOST_BYTES = 100_000


@dataclass(frozen=True)
class Notes:
    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def parse(cls, data: Any, where: str) -> Notes:
        if not isinstance(data, Mapping) or not data.keys() <= {"tags", "note"}:
            raise GrpoError(f'{where}: expected {{"tags": ["..."], "note": "..."}}')
        tags, note = data.get("tags", []), data.get("note", "")
        if not isinstance(note, str) or len(note) > MOST_NOTE_LENGTH:
            raise GrpoError(f"{where}: note: expected a text of at most {MOST_NOTE_LENGTH:,} characters")
        if not isinstance(tags, list) or len(tags) > MOST_TAGS or not all(_is_tag(tag) for tag in tags):
            raise GrpoError(
                f"{where}: tags: expected at most {MOST_TAGS} texts of 1 to {MOST_TAG_LENGTH} characters, no commas"
            )
        return cls(tuple(dict.fromkeys(tag.strip() for tag in tags)), note)


def _is_tag(tag: Any) -> bool:
    """
    >>> _is_tag("baseline"), _is_tag(" "), _is_tag("a,b"), _is_tag(7)
    (True, False, False, False)
    """
    return isinstance(tag, str) and 0 < len(tag.strip()) <= MOST_TAG_LENGTH and tag.isprintable() and "," not in tag


def read_notes(folder: Path) -> Notes:
    """The notes of a run; empty if its folder has no file of them."""
    file = folder / FILE
    try:
        with file.open("rb") as source:
            text = source.read(MOST_BYTES + 1).decode()
        data = json.loads(text)
    except FileNotFoundError:
        return Notes()
    except (OSError, ValueError, RecursionError) as problem:  # border: a file that people edit
        raise GrpoError(f"{file}: cannot be read as notes: {problem}; correct the file or delete it") from problem
    return Notes.parse(data, str(file))


def notes_row(folder: Path) -> dict[str, Any]:
    """Notes as the pages read them; a file that cannot be read is reported in their place."""
    try:
        notes = read_notes(folder)
    except GrpoError as problem:
        return {"tags": [], "note": "", "notes_problem": str(problem)}
    return {"tags": list(notes.tags), "note": notes.note, "notes_problem": None}


def write_notes(folder: Path, notes: Notes) -> None:
    """Replaces the file as a whole. A damaged file is kept: reading it raises first."""
    read_notes(folder)
    file = folder / FILE
    text = json.dumps({"tags": list(notes.tags), "note": notes.note}, ensure_ascii=False, indent=1) + "\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", dir=folder, prefix=".notes-", delete=False
        ) as aside:
            aside.write(text)
            aside.flush()
            os.fsync(aside.fileno())
        Path(aside.name).replace(file)
    except OSError as problem:  # border: the folder may be read-only, or the disk full
        raise GrpoError(f"{file}: cannot be written: {problem.strerror}") from problem
