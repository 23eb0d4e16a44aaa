"""Reads a run record: runs/<name>/run.db. schema.sql has its tables."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from grpo.config.schema import check_run_name, with_current_names
from grpo.errors import DamagedRecordError, GrpoError, one_line
from grpo.record.best import rank
from grpo.record.checkpoints import Checkpoints
from grpo.record.columns import decoded
from grpo.record.lock import is_abandoned
from grpo.record.metrics import EVAL_METRICS, is_metric
from grpo.record.older import OLDER, SCHEMA_VERSION, show_as_current
from grpo.record.records import Records
from grpo.tasks.traits import trait_metrics

COPY = "copy the run to a folder that can be written"
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
SETTINGS = ("model", "task", "algorithm", "seed", "prompts_per_step", "group_size")


def run_path(folder: Path, name: str) -> Path:
    check_run_name(name)
    path = folder / name
    if path.is_symlink():
        raise GrpoError(
            f"field run: {path} is a symbolic link; a run is a plain folder, choose another name (--run OTHER)"
        )
    return path


def refuse_file(folder: Path) -> None:
    """A folder of runs may be missing: the first run makes it."""
    if folder.exists() and not folder.is_dir():
        raise GrpoError(f"field runs: {folder} is not a folder; name the one that holds the runs")


def run_names(folder: Path) -> list[str]:
    """Folders that may be runs."""
    refuse_file(folder)
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def recorded_names(folder: Path) -> list[str]:
    """Those that have a record."""
    return [name for name in run_names(folder) if (folder / name / "run.db").is_file()]


def connect(file: Path, *, readonly: bool) -> sqlite3.Connection:
    mode = "mode=rwc" if not readonly else "mode=ro&immutable=1" if _is_immutable(file) else "mode=ro"
    uri = f"{file.resolve().as_uri()}?{mode}"
    # The loop and its recorder take turns with the writing connection, never at once; a reader keeps to its thread.
    # `timeout`: seconds to wait for another connection's lock.
    db = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=readonly)
    db.row_factory = sqlite3.Row
    return db


def _is_immutable(file: Path) -> bool:
    """Whether SQLite must read the file without locks and index, because their file run.db-shm cannot be created."""
    index, log = file.with_name("run.db-shm"), file.with_name("run.db-wal")
    if index.exists() or os.access(file.parent, os.W_OK):
        return False
    if log.exists() and log.stat().st_size:
        raise GrpoError(
            f"field run: {file.parent} cannot be written, and {log.name} has steps that are not in {file.name} yet; "
            f"{COPY}"
        )
    return True


def is_damage(problem: sqlite3.DatabaseError) -> bool:
    """Whether the file is at fault. SQLite sets a code; Python, where a text is not UTF-8, does not."""
    code = getattr(problem, "sqlite_errorcode", None)
    return isinstance(problem, sqlite3.OperationalError) if code is None else code & 0xFF in DAMAGED


def damaged(path: Path, problem: Exception) -> DamagedRecordError:
    """The error for a record that cannot be read. Checkpoints are separate files, and can be used without it."""
    newest = Checkpoints(path).newest()
    model = newest.model if newest else None
    use = f"its newest model can still be used: grpo sample {model} PROMPT, grpo train --model {model}"
    return DamagedRecordError(
        f"field run: {path / 'run.db'} cannot be read as a run record ({problem}); "
        f"{use if model else 'name another run'}"
    )


class RunReader:
    """A run's record: its config, steps, metrics, completions, evaluations and findings.

    A run can be read while it trains. `with grpo.Run.open("runs", "name", readonly=True) as run: …`
    """

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
    def open(cls, folder: str | os.PathLike[str], name: str, *, readonly: bool = False) -> Self:
        """Open the run `name` of a folder of runs; `readonly` for everything but training."""
        folder = Path(folder)
        path = run_path(folder, name)
        file = path / "run.db"
        if not file.is_file():
            known = ", ".join(recorded_names(folder)) or "none yet"
            raise GrpoError(f"field run: there is no run {name} in {folder}; known runs: {known}")
        if not readonly and not os.access(path, os.W_OK):
            raise GrpoError(f"field run: {path} cannot be written; {COPY}")
        db = connect(file, readonly=readonly)
        try:
            [version] = db.execute("PRAGMA user_version").fetchone()
            # A trainer checks the whole file first: damage must not surface in the middle of a run.
            found = "ok" if readonly else db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {one_line(found, 200)}")
            if version in OLDER and readonly:
                show_as_current(db, version)
            if version == SCHEMA_VERSION or (version in OLDER and readonly):
                return cls(path, db)
        # Border: any program may have written this file.
        except (sqlite3.DatabaseError, ValueError, LookupError) as problem:
            db.close()
            raise damaged(path, problem) from problem
        db.close()
        if version in OLDER:
            raise GrpoError(f"field run: an older grpo made {file}: it can be read, not resumed; start a new run")
        raise GrpoError(
            f"field run: {file} has record version {version}, this grpo reads {OLDER[0]} to {SCHEMA_VERSION}; "
            "name another run"
        )

    def close(self) -> None:
        """Close the record. A run is also a context manager that does this."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        self.close()
        # A reader does not check the whole file first: damage may surface in any query.
        if isinstance(problem, sqlite3.DatabaseError) and is_damage(problem):
            raise damaged(self.path, problem) from problem

    @property
    def status(self) -> str:
        """running, finished, stopped, failed, or killed (its process ended without recording a status)."""
        recorded = str(self.meta("status"))
        return "killed" if recorded == "running" and is_abandoned(self.path) else recorded

    @property
    def failure(self) -> str:
        """Why a failed run failed; empty for any other, and where the reason was not recorded."""
        return str(self.meta("failure") or "") if self.status == "failed" else ""

    def steps(self) -> Records:
        """One record per step: when it was recorded (seconds since 1970) and its seconds, in all and by phase."""
        found = {
            step: {"step": step, "recorded": recorded, "seconds": 0.0}
            for step, recorded in self._db.execute("SELECT step, recorded FROM steps ORDER BY step")
        }
        for step, name, seconds in self._db.execute("SELECT step, name, seconds FROM spans ORDER BY step, start"):
            found[step][f"{name}_seconds"] = seconds
            found[step]["seconds"] += seconds
        return Records(found.values())

    def metrics(self, since: int = 0) -> Records:
        """One record per step from `since` on: every metric that docs/metrics.md defines and the step has; None where
        the value was not finite."""
        return self._by_step("steps", "metrics", since)

    def series(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, without steps where the value was not finite."""
        if not is_metric(metric):
            raise GrpoError(
                f"no metric is named {metric!r}; run.metrics() has those of each step, docs/metrics.md lists all"
            )
        wanted = "SELECT step, value FROM metrics WHERE name = ? AND value IS NOT NULL ORDER BY step"
        return [(step, value) for step, value in self._db.execute(wanted, (metric,))]

    def completions(self, step: int | None = None) -> Records:
        """One record per completion of a step, or of all: its problem, text, reward, and advantage (the mean over its
        tokens). Parts of the reward are `part_NAME`, traits `trait_NAME`, columns of `log_extra` `extra_NAME`."""
        where, parameters = ("", ()) if step is None else ("WHERE step = ?", (step,))
        query = f"""SELECT problem_id, prompt, answer, policy_version, completions.* FROM completions
            JOIN groups USING (step, group_index) {where} ORDER BY step, group_index, sample_index"""
        return Records(_flat(dict(row)) for row in self._db.execute(query, parameters))

    def turns(self, step: int | None = None) -> Records:
        """One record per turn of the episodes of a step, or of all, in order: `who` spoke (model; tool; environment,
        which may be the task's reply), its `text`, its number of `tokens`, how many sampled tokens come before it
        (`after`), the tool `calls` that it answers, its `reward` and its `fault`. None for single-turn completions."""
        where, parameters = ("", ()) if step is None else ("WHERE step = ?", (step,))
        query = f"SELECT * FROM turns {where} ORDER BY step, group_index, sample_index, turn"
        return Records(_turn(row) for row in self._db.execute(query, parameters))

    def prompts(self) -> Records:
        """One record per problem that was sampled, in training or evaluation: its `problem_id`, the `place` of its row,
        and its prompt as the model read it, `text` with special tokens and `tokens`. Older records have none."""
        rows = self.select("SELECT problem_id, place, text, tokens FROM prompts ORDER BY problem_id")
        return Records({**row, "tokens": decoded("tokens", row["tokens"])} for row in rows)

    def evals(self) -> Records:
        """One record per evaluation, with all evaluation metrics; None where one does not apply."""
        return Records(
            {**dict.fromkeys(["step", *EVAL_METRICS]), **row} for row in self._by_step("evals", "eval_metrics")
        )

    def findings(self) -> Records:
        """Findings and warnings in the order they were recorded: recorded, step, kind, text."""
        return self.select("SELECT recorded, step, kind, text FROM findings ORDER BY recorded")

    def groups(self, step: int, index: int | None = None) -> list[dict[str, Any]]:
        """The groups of a step in order, each with its problem and its `completions`; those of episodes with `turns`,
        as `Run.turns` has them. `index`: only the group of this index."""
        return self._grouped("", step, index)

    def eval_groups(self, step: int, index: int | None = None) -> list[dict[str, Any]]:
        """The groups of the evaluation after `step` steps; each has one completion."""
        return self._grouped("eval_", step, index)

    def token_arrays(self, step: int) -> list[dict[str, Any]]:
        """Tokens and log-probabilities of the groups whose tokens were recorded: one dictionary per completion, with
        arrays, None where not recorded."""
        rows = self._db.execute("SELECT * FROM token_arrays WHERE step = ? ORDER BY group_index, sample_index", (step,))
        return [{key: decoded(key, value) for key, value in dict(row).items()} for row in rows]

    def spans(self) -> Records:
        """Phases of all steps in order: step, name, start (seconds since 1970), seconds."""
        return self.select("SELECT step, name, start, seconds FROM spans ORDER BY step, start")

    def probes(self) -> list[dict[str, Any]]:
        """Completions of the pinned problems at each evaluation."""
        rows = [dict(row) for row in self._db.execute("SELECT * FROM probes ORDER BY step, probe_index")]
        for row in rows:
            row["samples"] = json.loads(row["samples"])
            for sample in row["samples"]:
                sample.setdefault("correct", sample["reward"] is not None and sample["reward"] >= 1)  # older records
        return rows

    def summary(self) -> dict[str, Any]:
        """The run in one dictionary: settings, evaluations, seconds, findings. `grpo runs NAME --json` prints it."""
        with self._snapshot():
            meta, evals, outline = self._meta(), self.evals(), self.outline()
            [completions] = self._db.execute("SELECT count(*) FROM completions").fetchone()
            spans = dict(self._db.execute("SELECT name, sum(seconds) FROM spans GROUP BY name").fetchall())
            findings = self.findings()
        return {
            **outline,
            "failure": self.failure,
            "command": meta["command"],
            **{key: self.config.get(key) for key in SETTINGS},
            "completions": completions,
            "eval": evals,
            **(trait_metrics(evals[-1]) if evals else {}),
            "seconds": sum(spans.values()),
            "spans": spans,
            "findings": findings,
            "config": self.config,
            "world": meta.get("world"),
            **{key: meta[key] for key in ("versions", "git")},
        }

    def outline(self) -> dict[str, Any]:
        """The run in one line of a list."""
        [[created, steps, reward]] = self._db.execute(
            """SELECT (SELECT value FROM meta WHERE key = 'created'), (SELECT count(*) FROM steps),
            (SELECT value FROM metrics WHERE name = 'reward_mean' AND value IS NOT NULL ORDER BY step DESC LIMIT 1)"""
        )
        return {
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "created": json.loads(created),
            **{key: self.config.get(key) for key in ("model", "task", "algorithm")},
            "steps": steps,
            "reward_mean": reward,
        }

    def last_step(self) -> int | None:
        """The last recorded step; None before the first."""
        [step] = self._db.execute("SELECT max(step) FROM steps").fetchone()
        return step

    def best_step(self, up_to: float = math.inf) -> int | None:
        """Number of steps after which `checkpoints.best` was highest: held-out accuracy where nothing else is named.
        Ties: the higher accuracy, the higher mean reward, then the earlier. A run without accuracy is ranked by its
        mean reward.
        """
        wanted = self.config.get("checkpoints", {}).get("best", "")
        ranked = [(rank(row, wanted), -row["step"]) for row in self.evals() if row["step"] <= up_to]
        best = max((each for each in ranked if each[0] is not None), default=None)
        return None if best is None else -best[1]

    def meta(self, key: str) -> Any:
        """A fact about the run: created, command, versions, git, fingerprints, …; None if there is none."""
        return self._meta().get(key)

    def select(self, query: str, *parameters: Any) -> Records:
        """The rows of an SQL query; schema.sql names tables and columns."""
        return Records(dict(row) for row in self._db.execute(query, parameters))

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read transaction: all reads see the same snapshot of the database."""
        with self._db as db:
            db.execute("BEGIN")
            yield

    def _meta(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM meta")}

    def _by_step(self, steps: str, metrics: str, since: int = 0) -> Records:
        rows: dict[int, dict[str, Any]] = {}
        query = f"SELECT step, name, value FROM {steps} LEFT JOIN {metrics} USING (step) WHERE step >= ? ORDER BY step"
        for step, name, value in self._db.execute(query, (since,)):
            row = rows.setdefault(step, {"step": step})
            if name is not None:
                row[name] = value
        return Records(rows.values())

    def _grouped(self, prefix: str, step: int, index: int | None) -> list[dict[str, Any]]:
        where, parameters = ("step = ?", (step,)) if index is None else ("step = ? AND group_index = ?", (step, index))

        def rows(table: str, order: str) -> sqlite3.Cursor:
            return self._db.execute(f"SELECT * FROM {prefix}{table} WHERE {where} ORDER BY {order}", parameters)

        with self._snapshot():
            grouped = {row["group_index"]: {**dict(row), "completions": []} for row in rows("groups", "group_index")}
            for row in rows("completions", "group_index, sample_index"):
                decoded = {name: json.loads(row[name]) for name in ("parts", "traits", "extra")}
                decoded["correct"] = None if row["correct"] is None else bool(row["correct"])
                grouped[row["group_index"]]["completions"].append({**dict(row), **decoded, "turns": []})
            for row in rows("turns", "group_index, sample_index, turn"):
                grouped[row["group_index"]]["completions"][row["sample_index"]]["turns"].append(_turn(row))
        return list(grouped.values())


def _turn(row: sqlite3.Row) -> dict[str, Any]:
    return {**dict(row), "calls": json.loads(row["calls"])}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A completion's row with a key for each part of its reward, each trait and each logged column."""
    parts, traits, extra = (json.loads(row.pop(name)) for name in ("parts", "traits", "extra"))
    row["correct"] = None if row["correct"] is None else bool(row["correct"])
    return (
        {name: row.pop(name) for name in ("step", "group_index", "sample_index")}
        | row
        | {f"part_{name}": value for name, value in parts.items()}
        | {f"trait_{name}": value for name, value in traits.items()}
        | {f"extra_{name}": value for name, value in extra.items()}
    )
