"""Writes the run record: runs/<name>/run.db, SQLite, one transaction per step.

Readers open the database read-only and see every finished step while the trainer writes the next.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np

from grpo.errors import DiskFullError, GrpoError
from grpo.kill_points import point
from grpo.record import columns
from grpo.record.columns import as_json, completion_rows, content, group_row, insert, metric_rows, turn_rows
from grpo.record.metrics import EVAL_METRICS, check_names, is_timed
from grpo.record.provenance import command, provenance
from grpo.record.reader import RunReader, connect, damaged, is_damage, run_names, run_path
from grpo.types import Group

STATUSES = ("running", "finished", "stopped", "failed")
REFUSED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite says where another program holds the record, or the disk fails."""
LONGEST_SHOWN = 40
"""Characters of a value that a difference names."""
SCHEMA = Path(__file__).with_name("schema.sql").read_text()


def fresh_name(folder: Path, stem: str) -> str:
    """The stem with the first free number: arithmetic-grpo-001. Characters a run name may not have become hyphens."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:56]
    numbered = (f"{stem}-{number:03d}" for number in count(1))
    return next(name for name in numbered if not os.path.lexists(folder / name))


class Run(RunReader):
    """One run's record, to read and to write. Each writing method is one transaction, so a reader or a crash never
    sees half of it. `with Run.create(...) as run: run.record(...)`."""

    @classmethod
    def create(
        cls, folder: Path, name: str, *, kind: str, config: dict[str, Any], meta: Mapping[str, Any] | None = None
    ) -> Self:
        """`meta` holds further facts about the run, such as its fingerprints."""
        path = run_path(folder, name)
        # Written under another name and renamed: a folder with this name always holds a record.
        aside = folder / f".creating-{name}-{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir(mode=0o700, parents=True)  # completions may be private
        except OSError as error:
            raise GrpoError(f"field system.runs: cannot write in {folder}: {error.strerror}; choose another") from error
        about = {
            "kind": kind,
            "config": config,
            "status": "running",
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **provenance(),
            **(meta or {}),
        }
        db = connect(aside / "run.db", readonly=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                db.executescript(f"BEGIN; {SCHEMA}")
                rows = [(key, as_json(value)) for key, value in about.items()]
                db.executemany(insert("meta", ("key", "value")), rows)
            db.close()
        except sqlite3.OperationalError as error:
            db.close()
            shutil.rmtree(aside)
            if error.sqlite_errorname != "SQLITE_FULL":
                raise
            raise DiskFullError(f"{path / 'run.db'}: the disk is full; free some space") from error
        try:
            aside.rename(path)
        except OSError:
            shutil.rmtree(aside)
            raise GrpoError(f"field run: {name} exists in {folder}; choose another name (--run OTHER)") from None
        return cls(path, connect(path / "run.db", readonly=False))

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        spans: Mapping[str, float],
        token_groups: int = 1,
        ended: float | None = None,
    ) -> None:
        """Record one step, in place of an earlier record of it. Token arrays are kept for `token_groups` groups, those
        with unequal rewards first.

        `spans` follow one another up to `ended`, in seconds since 1970. None: they end now, and recording is a further
        span, `record`, because the caller waits for it.
        """
        check_names(metrics)
        now = time.time()
        starts = (now if ended is None else ended) - np.cumsum([*spans.values()][::-1])[::-1]
        span_rows = [(step, name, start, spans[name]) for name, start in zip(spans, starts.tolist(), strict=True)]
        point("record.begun")
        with self._transaction() as db:
            db.execute("DELETE FROM steps WHERE step = ?", (step,))
            db.execute(insert("steps", ("step", "recorded")), (step, now))
            db.executemany(insert("metrics", columns.METRIC), metric_rows(step, metrics))
            self._insert_groups("", step, groups)
            kept = columns.token_rows(step, groups, token_groups)
            db.executemany(insert("token_arrays", columns.TOKEN_ARRAYS), kept)
            if ended is None:  # everything except this line and the commit
                span_rows.append((step, "record", now, time.time() - now))
            db.executemany(insert("spans", columns.SPAN), span_rows)
            point("record.written")
        point("record.committed")

    def differences(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> list[str]:
        """How a step that is made again, after a kill, differs from its earlier record, apart from its times. Empty:
        it is the same, or it was never recorded."""
        known = dict(self._db.execute("SELECT name, value FROM metrics WHERE step = ?", (step,)).fetchall())
        before: dict[str, Any] = {f"metric {name}": known[name] for name in known if not is_timed(name)}
        wanted = ", ".join(columns.CONTENT)
        for group, sample, *values in self._db.execute(
            f"SELECT group_index, sample_index, {wanted} FROM completions WHERE step = ?", (step,)
        ):
            before[f"completion {group}/{sample}"] = dict(zip(columns.CONTENT, values, strict=True))
        wanted = ", ".join(columns.SPOKEN)
        for group, sample, turn, *values in self._db.execute(
            f"SELECT group_index, sample_index, turn, {wanted} FROM turns WHERE step = ?", (step,)
        ):
            before[f"turn {group}/{sample}/{turn}"] = dict(zip(columns.SPOKEN, values, strict=True))
        if not before:
            return []
        after: dict[str, Any] = {
            f"metric {name}": value for _, name, value in metric_rows(step, metrics) if not is_timed(name)
        }
        for index, group in enumerate(groups):
            for i, done in enumerate(group.completions):
                after[f"completion {index}/{i}"] = dict(zip(columns.CONTENT, content(done), strict=True))
            for _, _, i, turn, *values in turn_rows(step, index, group):
                after[f"turn {index}/{i}/{turn}"] = dict(zip(columns.SPOKEN, values, strict=True))
        places = sorted(before.keys() | after.keys())
        pairs = ((place, before.get(place), after.get(place)) for place in places)
        return [_difference(place, was, now) for place, was, now in pairs if was != now]

    def record_eval(self, step: int, row: Mapping[str, float], groups: Sequence[Group]) -> None:
        check_names(row, EVAL_METRICS)
        with self._transaction() as db:
            db.execute("DELETE FROM evals WHERE step = ?", (step,))
            db.execute(insert("evals", ("step", "recorded")), (step, time.time()))
            db.executemany(insert("eval_metrics", columns.METRIC), metric_rows(step, row))
            self._insert_groups("eval_", step, groups)

    def record_probes(self, step: int, groups: Sequence[Group]) -> None:
        rows = columns.probe_rows(step, groups)
        with self._transaction() as db:
            self._insert_prompts(groups)
            db.execute("DELETE FROM probes WHERE step = ?", (step,))
            db.executemany(insert("probes", columns.PROBE), rows)

    def add_finding(self, kind: str, text: str, step: int | None = None) -> None:
        with self._transaction() as db:
            db.execute(insert("findings", columns.FINDING), (time.time(), step, kind, text))

    def set_started(self, config: dict[str, Any]) -> None:
        """Record the settings and the command of this start or resume: the next resume needs them."""
        with self._transaction() as db:
            for key, value in (("config", config), ("command", command())):
                _set_meta(db, key, value)
        self.config = config

    def set_status(self, status: str) -> None:
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {STATUSES}")
        self.set_meta("status", status)

    def set_meta(self, key: str, value: Any) -> None:
        with self._transaction() as db:
            _set_meta(db, key, value)

    def rewind(self, step: int) -> None:
        """Delete everything after the first `step` steps, to resume from a checkpoint taken there."""
        with self._transaction() as db:
            db.execute("DELETE FROM steps WHERE step >= ?", (step,))
            db.execute("DELETE FROM evals WHERE step > ?", (step,))
            db.execute("DELETE FROM probes WHERE step > ?", (step,))

    def _insert_prompts(self, groups: Sequence[Group]) -> None:
        """Each problem's prompt once; the newest, where a resume accepted another chat template."""
        query = f"""{insert("prompts", columns.PROMPT)} ON CONFLICT DO UPDATE
            SET text = excluded.text, tokens = excluded.tokens WHERE tokens != excluded.tokens"""
        self._db.executemany(query, map(columns.prompt_row, groups))

    def _insert_groups(self, prefix: str, step: int, groups: Sequence[Group]) -> None:
        self._insert_prompts(groups)
        group_insert = insert(f"{prefix}groups", columns.GROUP)
        completion_insert = insert(f"{prefix}completions", columns.COMPLETION)
        turn_insert = insert(f"{prefix}turns", columns.TURN)
        for index, group in enumerate(groups):
            rows = completion_rows(step, index, group)
            self._db.execute(group_insert, group_row(step, index, group))
            self._db.executemany(completion_insert, rows)
            self._db.executemany(turn_insert, turn_rows(step, index, group))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._db as db:
                yield db
        except sqlite3.DatabaseError as error:
            kind, file = getattr(error, "sqlite_errorcode", 0) & 0xFF, self.path / "run.db"
            if kind == sqlite3.SQLITE_FULL:
                raise DiskFullError(f"{file}: the disk is full; everything recorded before is intact") from error
            if is_damage(error):
                raise damaged(self.path, error) from error
            if kind in REFUSED:
                raise GrpoError(f"{file}: cannot be written ({error}); resume once it can (--resume)") from error
            raise


def _set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, as_json(value)))


def _difference(place: str, was: Any, now: Any) -> str:
    """One line; of the columns of a row, only those that differ.

    >>> _difference("completion 0/1", {"text": "42", "logprob": -8.25}, {"text": "42", "logprob": -8.5})
    'completion 0/1: logprob was -8.25, is -8.5'
    """
    if place.startswith("metric "):
        return f"{place} {_was_is(was, now)}"
    if was is None or now is None:
        return f"{place} {'is new' if was is None else 'is missing'}"
    return f"{place}: {'; '.join(f'{name} {_was_is(was[name], now[name])}' for name in was if was[name] != now[name])}"


def _was_is(was: Any, now: Any) -> str:
    """Long values without the start that they share, and cut after that.

    >>> _was_is(f"{'a' * 99}b{'c' * 99}", f"{'a' * 99}B")
    "was …aaaaaaaaabcccccccccccccccccccccccccccccc…, is …aaaaaaaaaB'"
    """
    # SQLite has no booleans, so `correct` is read as 0 or 1.
    texts = [repr(int(value) if isinstance(value, bool) else value) for value in (was, now)]
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, same - 9) if max(map(len, texts)) > LONGEST_SHOWN else 0
    shown = [
        f"{'…' if start else ''}{text[start : start + LONGEST_SHOWN]}{'…' if len(text) > start + LONGEST_SHOWN else ''}"
        for text in texts
    ]
    return f"was {shown[0]}, is {shown[1]}"


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """One short row per run, newest first. A folder that cannot be read has status "unreadable" and a `problem`."""
    listed = ("name", "kind", "status", "created", "model", "task", "algorithm", "steps", "reward_mean", "problem")
    rows = []
    for name in run_names(folder):
        try:
            with Run.open(folder, name, readonly=True) as run:
                found = run.outline()
        except (GrpoError, sqlite3.Error, OSError, ValueError, LookupError, TypeError) as problem:
            # Border: one bad folder must not hide the others.
            found = {"name": name, "status": "unreadable", "problem": str(problem)}
        rows.append({column: found.get(column) for column in listed})
    return sorted(rows, key=lambda row: row["created"] or "", reverse=True)
