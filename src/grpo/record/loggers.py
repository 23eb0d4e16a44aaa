"""W&B, TensorBoard and trackio: the numbers of the record under the same names and steps.

A thread passes rows to the loggers, so that no training step waits for a disk or a network. When a run resumes, a
logger gets the rows it lacks from the record, and no row twice.
"""

from __future__ import annotations

import io
import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from grpo.config.schema import as_dict, to_toml
from grpo.errors import GrpoError, one_line
from grpo.record.events import Callback, Callbacks
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run

PROJECT = "grpo"
"""Project name, unless WANDB_PROJECT or TRACKIO_PROJECT is set."""
SECONDS_TO_CLOSE = 60.0
"""Longest wait for pending rows at the end of a run."""

RowKey = tuple[int, bool]
"""(step, is_step). Sort key: the evaluation after `step` steps comes before the row of step `step`."""
BEFORE_ALL: RowKey = (-1, True)


@dataclass(frozen=True)
class LoggedRow:
    key: RowKey
    values: Mapping[str, float]


class Logger(Protocol):
    last_row: RowKey | None
    """The last row it has of a resumed run; None if unknown: then it is taken to have all that the record has."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, run: Run, config: Config | SftConfig, first_step: int, id: str):
        from torch.utils.tensorboard import SummaryWriter

        # Readers drop later steps that a killed run wrote.
        self.writer: Any = SummaryWriter(str(run.path / "tensorboard"), purge_step=first_step or None)
        self.last_row: RowKey | None = (first_step - 1, True)
        self.writer.add_text("config", f"```toml\n{to_toml(config)}```", first_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        self.writer.close()


class Wandb:
    def __init__(self, run: Run, config: Config | SftConfig, first_step: int, id: str):
        import wandb

        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=id,
            resume="allow",
            config=as_dict(config),
            dir=str(run.path),
            settings=wandb.Settings(console="off", silent=True),
        )
        step = self.run.summary.get("step")  # known only online
        self.last_row: RowKey | None = None if step is None else (int(step), True)
        # W&B's own step must rise with every call; here an evaluation and a step may share a number.
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio:
    def __init__(self, run: Run, config: Config | SftConfig, first_step: int, id: str):
        import trackio

        with redirect_stdout(io.StringIO()):  # it prints how to open its dashboard
            self.run: Any = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=f"{run.name}-{id}",
                resume="allow",
                config=as_dict(config),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        next_step = getattr(self.run, "_next_step", None)
        self.last_row: RowKey | None = None if next_step is None else (next_step - 1, True)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


LOGGERS: Mapping[str, type[TensorBoard] | type[Wandb] | type[Trackio]] = {
    "wandb": Wandb,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}


def with_loggers(callbacks: Sequence[Callback], names: str) -> Callbacks:
    """The callbacks, after the loggers of these names (separated by commas); refuses one that is not installed."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        found = find_spec(name)
        # Without an origin it is a folder of that name in the working directory: W&B makes one.
        if found is None or found.origin is None:
            raise GrpoError(
                f'field system.log: {name} is not installed: pip install {name}, or "grpo-lab[log]" for all'
            )
    every = Callbacks(callbacks)
    if chosen:
        every.members.insert(0, Loggers(list(dict.fromkeys(chosen)), every.on_warning))
    return every


class Loggers(Callback):
    """Passes steps and evaluations to W&B, TensorBoard or trackio. A logger that fails is dropped, with a warning; the
    run continues."""

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]):
        self.names, self.warn = names, warn
        self.loggers: dict[str, Logger] = {}
        self.sent: dict[str, RowKey] = {}
        """The last row that each logger has."""
        self.rows: SimpleQueue[LoggedRow | None] = SimpleQueue()
        self.failures: SimpleQueue[str] = SimpleQueue()
        self.opened = threading.Event()

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.run, history = run, recorded_rows(run)
        file = run.path / "loggers.json"
        new: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "names": []}
        known = json.loads(file.read_text()) if file.exists() else new
        self.sent = {name: history[-1].key if history and name in known["names"] else BEFORE_ALL for name in self.names}
        for row in history:
            self.rows.put(row)
        about = (run, config, first_step, known["id"])
        self.thread = threading.Thread(target=self._serve, args=about, name="loggers", daemon=True)
        self.thread.start()
        self.opened.wait()
        file.write_text(json.dumps(known | {"names": sorted({*known["names"], *self.loggers})}))
        self._report_failures(first_step)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.put(_of_evaluation(step, metrics))
        self._report_failures(step)

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        spans = self.run.select("SELECT name, seconds FROM spans WHERE step = ?", step)
        self.rows.put(_of_step(step, metrics, spans))
        self._report_failures(step)

    def on_end(self, run: Run) -> None:
        self.failed = run.status == "failed"
        self.rows.put(None)
        self.thread.join(SECONDS_TO_CLOSE)
        if self.thread.is_alive():
            self.failures.put(
                f"field system.log: loggers did not finish within {SECONDS_TO_CLOSE:.0f} s; rows may be missing"
            )
        self._report_failures(None)

    def _open(self, *about: Any) -> None:
        for name in self.names:
            try:
                self.loggers[name] = logger = LOGGERS[name](*about)
                if self.sent[name] != BEFORE_ALL and logger.last_row is not None:
                    self.sent[name] = logger.last_row
            except Exception as error:  # noqa: BLE001  border: a logger's code may raise anything
                self._failed(name, error)

    def _serve(self, *about: Any) -> None:
        """Loggers are opened, written and closed on one thread, because some keep their run in thread-local state."""
        try:
            self._open(*about)
        finally:
            self.opened.set()
        while (row := self.rows.get()) is not None:
            for name in [name for name in self.loggers if row.key > self.sent[name]]:
                self.sent[name] = row.key
                self._attempt(name, self.loggers[name].write, row.key[0], row.values)
        for name, logger in list(self.loggers.items()):
            self._attempt(name, logger.close, self.failed)

    def _attempt(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001  border: a logger's code may raise anything
            del self.loggers[name]
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        self.failures.put(f"field system.log: {name} failed and is dropped for the rest of the run: {reason}")

    def _report_failures(self, step: int | None) -> None:
        """Call on the recorder's thread, the only one that may write to the record."""
        while not self.failures.empty():
            text = self.failures.get()
            self.warn(text)
            self.run.add_finding("logger", text, step)


def recorded_rows(run: Run) -> list[LoggedRow]:
    """All rows that a logger gets of a run, up to its last step."""
    spans: dict[int, list[Mapping[str, Any]]] = {}
    for span in run.spans():
        spans.setdefault(span["step"], []).append(span)
    rows = [_of_evaluation(row.pop("step"), row) for row in run.evals()]
    for row in run.metrics():
        step = row.pop("step")
        rows.append(_of_step(step, row, spans.get(step, [])))
    return sorted(rows, key=lambda row: row.key)


def _of_step(step: int, metrics: Mapping[str, float], spans: Sequence[Mapping[str, Any]]) -> LoggedRow:
    return LoggedRow((step, True), _known(metrics) | {f"seconds/{span['name']}": span["seconds"] for span in spans})


def _of_evaluation(step: int, row: Mapping[str, float]) -> LoggedRow:
    return LoggedRow((step, False), {f"eval/{name}": value for name, value in _known(row).items()})


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite values; the record has None for the others."""
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
