"""The list of runs: those of a folder, and those that ship with the package."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.notes import Notes, notes_row, write_notes
from grpo.lab.reading import headline
from grpo.record.store import Run

RECORDINGS = Path(__file__).with_name("recordings")
EXAMPLE = "~"
"""Prefix of a shipped run's id; run names cannot start with it."""


class UnknownRunError(GrpoError):
    """The listing has no run with this id."""


class Catalogue:
    """Runs by id. Ids come from a listing of the folders; a request never contains a path."""

    def __init__(self, folder: Path):
        self.folder = folder

    def folders(self) -> dict[str, tuple[Path, str]]:
        """Run id -> (folder, name)."""
        own = {name: (self.folder, name) for name in _run_names(self.folder)}
        return own | {f"{EXAMPLE}{name}": (RECORDINGS, name) for name in _run_names(RECORDINGS)}

    def open(self, run_id: str) -> Run:
        place = self.folders().get(run_id)
        if place is None:
            raise UnknownRunError(f"no run {run_id[:80]!r} here; see the list of runs")
        return Run.open(*place, readonly=True)

    def annotate(self, run_id: str, data: Any) -> Notes:
        """Saves tags and note of one of the folder's own runs."""
        place = self.folders().get(run_id)
        if place is None:
            raise UnknownRunError(f"no run {run_id[:80]!r} here; see the list of runs")
        if run_id.startswith(EXAMPLE):
            raise GrpoError(f"notes: {place[1]} ships with the package and cannot be changed")
        notes = Notes.parse(data, "notes")
        write_notes(place[0] / place[1], notes)
        return notes

    def listing(self) -> list[dict[str, Any]]:
        """One row per run, newest first, shipped runs last; an unreadable run has its problem."""
        rows = [self._row(run_id, folder, name) for run_id, (folder, name) in self.folders().items()]
        newest_first = sorted(rows, key=lambda row: row["created"] or "", reverse=True)
        return sorted(newest_first, key=lambda row: row["example"])

    def _row(self, run_id: str, folder: Path, name: str) -> dict[str, Any]:
        about = {"id": run_id, "name": name, "example": run_id.startswith(EXAMPLE), "problem": None, "created": None}
        about |= notes_row(folder / name)
        try:
            with Run.open(folder, name, readonly=True) as run:
                return about | headline(run)
        except (
            GrpoError,
            sqlite3.Error,
            OSError,
            ValueError,
            KeyError,
        ) as problem:  # border: files of any origin
            return about | {"status": "unreadable", "problem": str(problem)}


def _run_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith(".") and not entry.is_symlink())
    # A name of other bytes than text cannot be part of an address.
    return sorted(entry.name for entry in entries if entry.name.isprintable() and (entry / "run.db").is_file())
