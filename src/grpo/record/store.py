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
from grpo.record.reader import RunReader, connect, run_names, run_path
from grpo.types import Group

STATUSES = ("running", "finished", "stopped", "failed")
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
            before[f"completion {group}/{sample}"] = tuple(values)
        wanted = ", ".join(columns.SPOKEN)
        for group, sample, turn, *values in self._db.execute(
            f"SELECT group_index, sample_index, turn, {wanted} FROM turns WHERE step = ?", (step,)
        ):
            before[f"turn {group}/{sample}/{turn}"] = tuple(values)
        if not before:
            return []
        after: dict[str, Any] = {
            f"metric {name}": value for _, name, value in metric_rows(step, metrics) if not is_timed(name)
        }
        for index, group in enumerate(groups):
            after |= {f"completion {index}/{i}": content(done) for i, done in enumerate(group.completions)}
            for _, _, i, turn, *values in turn_rows(step, index, group):
                after[f"turn {index}/{i}/{turn}"] = tuple(values)
        places = sorted(before.keys() | after.keys())
        pairs = ((place, before.get(place), after.get(place)) for place in places)
        return [f"{place} was {was}, is {now}" for place, was, now in pairs if was != now]

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
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_FULL":
                raise
            message = f"{self.path / 'run.db'}: the disk is full; everything recorded before is intact"
            raise DiskFullError(message) from error


def _set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, as_json(value)))


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
