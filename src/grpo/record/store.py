"""The run record: runs/<name>/run.db, SQLite, one transaction per step.

Readers open the database read-only and see every finished step while the trainer writes the next.
"""

from __future__ import annotations

import json
import math
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

from grpo.config.parse import one_line
from grpo.config.schema import check_run_name, with_current_names
from grpo.errors import DiskFullError, GrpoError
from grpo.kill_points import point
from grpo.record.lock import is_left_behind
from grpo.record.metrics import EVAL_METRICS, TIMED_METRICS, check_names
from grpo.record.provenance import provenance
from grpo.record.rows import as_json, completion_rows, decoded, group_row, metric_rows, probe_rows, token_rows
from grpo.types import Group

STATUSES = ("running", "finished", "stopped", "failed")
SCHEMA_VERSION = 3
BEFORE_CORRECT = 2
"""Records without the column `correct`, which can be read but not continued: full reward stood for a right answer."""
SCHEMA = Path(__file__).with_name("schema.sql").read_text()


def fresh_name(folder: Path, stem: str) -> str:
    """The stem with the first free number: arithmetic-grpo-001. What a run name may not hold becomes a hyphen."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:56]
    numbered = (f"{stem}-{number:03d}" for number in count(1))
    return next(name for name in numbered if not os.path.lexists(folder / name))


def _run_path(folder: Path, name: str) -> Path:
    check_run_name(name)
    path = folder / name
    if path.is_symlink():
        raise GrpoError(f"field run: {path} is a symbolic link; a run is a plain folder, name another with --run OTHER")
    return path


def _connect(file: Path, *, readonly: bool) -> sqlite3.Connection:
    uri = f"{file.resolve().as_uri()}?mode={'ro' if readonly else 'rwc'}"
    # The loop and its recorder take turns with the writing connection, never at once; a reader keeps to its thread.
    # `timeout`: seconds to wait for another connection's lock.
    db = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=readonly)
    db.row_factory = sqlite3.Row
    return db


def _add_correct(db: sqlite3.Connection) -> None:
    """Show the tables of an older record with the column `correct`."""
    for table in ("completions", "eval_completions"):
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *, reward >= 1 AS correct FROM main.{table}")


class Run:
    """One run's record. `with Run.create(...) as run: run.record(...)`."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self.name = path.name
        self._db = db
        db.execute("PRAGMA synchronous = NORMAL")  # with WAL: a power cut may lose the last steps, never tear one
        db.execute("PRAGMA foreign_keys = ON")
        meta = self._meta()
        self.config: dict[str, Any] = with_current_names(meta["config"])
        self.kind: str = meta["kind"]

    @classmethod
    def create(
        cls, folder: Path, name: str, *, kind: str, config: dict[str, Any], meta: Mapping[str, Any] | None = None
    ) -> Self:
        """`meta` is whatever else the run should know of itself, such as its fingerprints."""
        path = _run_path(folder, name)
        # Made aside and renamed: a folder with this name always holds a record.
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
        db = _connect(aside / "run.db", readonly=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            with db:
                db.executescript(f"BEGIN; {SCHEMA}")
                db.executemany(
                    "INSERT INTO meta VALUES (?, ?)", [(key, as_json(value)) for key, value in about.items()]
                )
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
        return cls(path, _connect(path / "run.db", readonly=False))

    @classmethod
    def open(cls, folder: Path, name: str, *, readonly: bool = False) -> Self:
        path = _run_path(folder, name)
        file = path / "run.db"
        if not file.is_file():
            known = ", ".join(known for known in _folders(folder) if (folder / known / "run.db").exists()) or "none yet"
            raise GrpoError(f"field run: there is no run {name} in {folder}; known runs: {known}")
        db = _connect(file, readonly=readonly)
        try:
            [version] = db.execute("PRAGMA user_version").fetchone()
            # Somebody will write: better refused now than found out in the middle of a run.
            found = "ok" if readonly else db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {one_line(found, 200)}")
            if version == BEFORE_CORRECT and readonly:
                _add_correct(db)
            if version == SCHEMA_VERSION or (version == BEFORE_CORRECT and readonly):
                return cls(path, db)
        except sqlite3.DatabaseError as problem:  # border: a file that anything may have written
            db.close()
            raise GrpoError(
                f"field run: {file} cannot be read as a run record ({problem}); name another run"
            ) from problem
        db.close()
        raise GrpoError(
            f"field run: {file} has record version {version}, this grpo continues {SCHEMA_VERSION}; start a new run"
        )

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Writing: each method is one transaction, so a reader or a crash never sees half of it.

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        spans: Mapping[str, float],
        token_groups: int = 1,
        ended: float | None = None,
    ) -> list[str]:
        """Record one step. Per-token arrays are kept for `token_groups` groups, those with unequal rewards first.

        `spans` follow one another up to `ended`, seconds since 1970. None: up to now, and what follows is a span too,
        `record`, because the caller waits for it.

        A step that was recorded before (a run killed after its last checkpoint makes it again) is replaced. What is
        not the same as before, times apart, is returned: it should be nothing.
        """
        check_names(metrics)
        now = time.time()
        starts = (now if ended is None else ended) - np.cumsum([*spans.values()][::-1])[::-1]
        span_rows = [(step, name, start, spans[name]) for name, start in zip(spans, starts.tolist(), strict=True)]
        point("record.begun")
        with self._transaction() as db:
            before = self._timeless(step)
            db.execute("DELETE FROM steps WHERE step = ?", (step,))
            db.execute("INSERT INTO steps VALUES (?, ?)", (step, now))
            db.executemany("INSERT INTO metrics VALUES (?, ?, ?)", metric_rows(step, metrics))
            self._insert_groups("", step, groups)
            now_recorded = self._timeless(step) if before else before
            kept = token_rows(step, groups, token_groups)
            db.executemany("INSERT INTO token_arrays VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)
            if ended is None:  # all of it but this line and the commit
                span_rows.append((step, "record", now, time.time() - now))
            db.executemany("INSERT INTO spans VALUES (?, ?, ?, ?)", span_rows)
            point("record.written")
        point("record.committed")
        places = sorted(before.keys() | now_recorded.keys())
        pairs = ((place, before.get(place), now_recorded.get(place)) for place in places)
        return [f"{place} was {was}, is {now}" for place, was, now in pairs if was != now]

    def record_eval(self, step: int, row: Mapping[str, float], groups: Sequence[Group]) -> None:
        check_names(row, EVAL_METRICS)
        with self._transaction() as db:
            db.execute("DELETE FROM evals WHERE step = ?", (step,))
            db.execute("INSERT INTO evals VALUES (?, ?)", (step, time.time()))
            db.executemany("INSERT INTO eval_metrics VALUES (?, ?, ?)", metric_rows(step, row))
            self._insert_groups("eval_", step, groups)

    def record_probes(self, step: int, groups: Sequence[Group]) -> None:
        rows = probe_rows(step, groups)
        with self._transaction() as db:
            db.execute("DELETE FROM probes WHERE step = ?", (step,))
            db.executemany("INSERT INTO probes VALUES (?, ?, ?, ?, ?, ?)", rows)

    def find(self, kind: str, text: str, step: int | None = None) -> None:
        """Notes what somebody should look at."""
        with self._transaction() as db:
            db.execute("INSERT INTO findings VALUES (?, ?, ?, ?)", (time.time(), step, kind, text))

    def set_config(self, config: dict[str, Any]) -> None:
        self.set_meta("config", config)
        self.config = config

    def set_status(self, status: str) -> None:
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {STATUSES}")
        self.set_meta("status", status)

    def set_meta(self, key: str, value: Any) -> None:
        """What the run has learnt of itself since it was made."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, as_json(value)))

    def rewind(self, step: int) -> None:
        """Forget what came after the first `step` steps: to resume from a checkpoint taken there."""
        with self._transaction() as db:
            db.execute("DELETE FROM steps WHERE step >= ?", (step,))
            db.execute("DELETE FROM evals WHERE step > ?", (step,))
            db.execute("DELETE FROM probes WHERE step > ?", (step,))

    def _insert_groups(self, prefix: str, step: int, groups: Sequence[Group]) -> None:
        for index, group in enumerate(groups):
            rows = completion_rows(step, index, group)
            self._db.execute(f"INSERT INTO {prefix}groups VALUES (?, ?, ?, ?, ?, ?)", group_row(step, index, group))
            self._db.executemany(
                f"INSERT INTO {prefix}completions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._db as db:
                yield db
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_FULL":
                raise
            message = f"{self.path / 'run.db'}: the disk is full; what was recorded before is intact"
            raise DiskFullError(message) from error

    def _timeless(self, step: int) -> dict[str, Any]:
        """All that a step recorded but its times, by place; empty when it was not recorded."""
        metrics = self._db.execute("SELECT name, value FROM metrics WHERE step = ?", (step,)).fetchall()
        places = {f"metric {name}": value for name, value in metrics if name not in TIMED_METRICS}
        for row in self._db.execute("SELECT * FROM completions WHERE step = ?", (step,)):
            places[f"completion {row['group_index']}/{row['sample_index']}"] = tuple(row)[3:]
        return places

    # Reading.

    def meta(self, key: str) -> Any:
        """What the run was told of itself when it was made, such as its fingerprints."""
        return self._meta().get(key)

    def best_step(self, up_to: float = math.inf) -> int | None:
        """After how many steps held-out accuracy was highest; among equals the mean reward; among those the first."""

        def rank(row: dict[str, Any]) -> tuple[float, float, int]:
            reward = row["reward_mean"]
            return row["accuracy"], -math.inf if reward is None else reward, -row["step"]

        rows = [row for row in self.evals() if row["accuracy"] is not None and row["step"] <= up_to]
        return max(rows, key=rank)["step"] if rows else None

    def last_step(self) -> int | None:
        [step] = self._db.execute("SELECT max(step) FROM steps").fetchone()
        return step

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """(step, value) in order, without the steps where the value was not finite."""
        check_names({name: 0.0})
        wanted = "SELECT step, value FROM metrics WHERE name = ? AND value IS NOT NULL ORDER BY step"
        return [(step, value) for step, value in self._db.execute(wanted, (name,))]

    def all_metrics(self) -> list[dict[str, Any]]:
        return self._by_step("steps", "metrics")

    def evals(self) -> list[dict[str, Any]]:
        """One row per evaluation, with every column of the table; None where it does not apply."""
        return [{**dict.fromkeys(["step", *EVAL_METRICS]), **row} for row in self._by_step("evals", "eval_metrics")]

    def completions(self, step: int) -> list[dict[str, Any]]:
        """The step's groups in order, each with its problem and its `completions`."""
        return self._grouped("", step)

    def eval_completions(self, step: int) -> list[dict[str, Any]]:
        return self._grouped("eval_", step)

    def token_arrays(self, step: int) -> list[dict[str, Any]]:
        """Rows of the groups whose tokens were kept: group_index, sample_index and arrays, None where not recorded."""
        rows = self._db.execute("SELECT * FROM token_arrays WHERE step = ? ORDER BY group_index, sample_index", (step,))
        return [{key: decoded(key, value) for key, value in dict(row).items()} for row in rows]

    def spans(self) -> list[dict[str, Any]]:
        """Where each step's time went, in order: step, name, start (seconds since 1970), seconds."""
        return [dict(row) for row in self._db.execute("SELECT * FROM spans ORDER BY step, start")]

    def findings(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute("SELECT * FROM findings ORDER BY recorded")]

    def probes(self) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self._db.execute("SELECT * FROM probes ORDER BY step, probe_index")]
        for row in rows:
            row["samples"] = json.loads(row["samples"])
            for sample in row["samples"]:
                sample.setdefault("correct", sample["reward"] is not None and sample["reward"] >= 1)  # older records
        return rows

    def select(self, query: str, *parameters: Any) -> list[dict[str, Any]]:
        """For readers with questions of their own; schema.sql names tables and columns."""
        return [dict(row) for row in self._db.execute(query, parameters)]

    @property
    def status(self) -> str:
        """As recorded, but for a run that can no longer say how it ended."""
        recorded = str(self.meta("status"))
        return "killed" if recorded == "running" and is_left_behind(self.path) else recorded

    def summary(self) -> dict[str, Any]:
        """What `grpo runs NAME --json` prints."""
        with self._snapshot():
            meta, evals, rewards = self._meta(), self.evals(), self.metrics("reward_mean")
            [steps] = self._db.execute("SELECT count(*) FROM steps").fetchone()
            [completions] = self._db.execute("SELECT count(*) FROM completions").fetchone()
            spans = dict(self._db.execute("SELECT name, sum(seconds) FROM spans GROUP BY name").fetchall())
        settings = ("model", "task", "algorithm", "seed", "prompts_per_step", "group_size")
        return {
            "name": self.name,
            "kind": meta["kind"],
            "status": self.status,
            **{key: meta[key] for key in ("created", "command")},
            **{key: self.config.get(key) for key in settings},
            "steps": steps,
            "completions": completions,
            "eval": evals,
            "worked_share": evals[-1]["worked_share"] if evals else None,
            "reward_mean": rewards[-1][1] if rewards else None,
            "seconds": sum(spans.values()),
            "spans": spans,
            "findings": self.findings(),
            "config": self.config,
            **{key: meta[key] for key in ("versions", "git")},
        }

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads of one moment, whatever a trainer commits meanwhile."""
        with self._db as db:
            db.execute("BEGIN")
            yield

    def _meta(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM meta")}

    def _by_step(self, steps: str, metrics: str) -> list[dict[str, Any]]:
        rows: dict[int, dict[str, Any]] = {}
        query = f"SELECT step, name, value FROM {steps} LEFT JOIN {metrics} USING (step) ORDER BY step"
        for step, name, value in self._db.execute(query):
            row = rows.setdefault(step, {"step": step})
            if name is not None:
                row[name] = value
        return list(rows.values())

    def _grouped(self, prefix: str, step: int) -> list[dict[str, Any]]:
        with self._snapshot():
            groups = self._db.execute(f"SELECT * FROM {prefix}groups WHERE step = ? ORDER BY group_index", (step,))
            grouped: list[dict[str, Any]] = [{**dict(group), "completions": []} for group in groups]
            for row in self._db.execute(
                f"SELECT * FROM {prefix}completions WHERE step = ? ORDER BY group_index, sample_index", (step,)
            ):
                decoded = {"parts": json.loads(row["parts"]), "traits": json.loads(row["traits"])}
                decoded["correct"] = None if row["correct"] is None else bool(row["correct"])
                grouped[row["group_index"]]["completions"].append({**dict(row), **decoded})
        return grouped


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """One short row per run, newest first. A folder that cannot be read has status "unreadable" and a `problem`."""
    columns = ("name", "kind", "status", "created", "model", "task", "algorithm", "steps", "reward_mean", "problem")
    rows = []
    for name in _folders(folder):
        try:
            with Run.open(folder, name, readonly=True) as run:
                found = run.summary()
        except (GrpoError, sqlite3.Error, OSError, ValueError) as problem:  # border: one bad folder hides no other
            found = {"name": name, "status": "unreadable", "problem": str(problem)}
        rows.append({column: found.get(column) for column in columns})
    return sorted(rows, key=lambda row: row["created"] or "", reverse=True)
