"""W&B, TensorBoard and trackio beside our own record: the same numbers under the same names and steps.

A thread of its own hands rows over, so that no training step waits for a disk or a network. What a logger lacks of a
run that goes on, it gets from the record; what it has, it does not get again.
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

from grpo.config.parse import one_line
from grpo.config.schema import as_dict, to_toml
from grpo.errors import GrpoError
from grpo.record.events import Callback, Callbacks
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run

PROJECT = "grpo"
"""Under which runs appear, unless WANDB_PROJECT or TRACKIO_PROJECT says otherwise."""
SECONDS_TO_CLOSE = 60.0
"""How long the end of a run waits for rows still on their way."""

Place = tuple[int, bool]
"""A step, and whether its own row is meant; that of the evaluation before it comes first."""
NOTHING: Place = (-1, True)


@dataclass(frozen=True)
class Row:
    place: Place
    values: Mapping[str, float]


class Logger(Protocol):
    held: Place | None
    """The last row it has of a run that goes on; None where it cannot tell: all that the record has, then."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


class TensorBoard:
    """Event files in the run's own folder."""

    def __init__(self, run: Run, config: Config | SftConfig, first_step: int, id: str):
        from torch.utils.tensorboard import SummaryWriter

        # Readers forget what was written of later steps by a run that was killed there.
        self.writer: Any = SummaryWriter(str(run.path / "tensorboard"), purge_step=first_step or None)
        self.held: Place | None = (first_step - 1, True)
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
        step = self.run.summary.get("step")  # known where it is online
        self.held: Place | None = None if step is None else (int(step), True)
        # Its own step must rise with every call; an evaluation and a step may share one here.
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio:
    def __init__(self, run: Run, config: Config | SftConfig, first_step: int, id: str):
        import trackio

        with redirect_stdout(io.StringIO()):  # it prints how to open its pages
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
        self.held: Place | None = None if next_step is None else (next_step - 1, True)

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
        # Without an origin it is a folder of that name that happens to be here: W&B makes one.
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
        self.has: dict[str, Place] = {}
        """The last row that each of them has."""
        self.rows: SimpleQueue[Row | None] = SimpleQueue()
        self.failures: SimpleQueue[str] = SimpleQueue()
        self.begun = threading.Event()

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.run, history = run, recorded_rows(run)
        notes = run.path / "loggers.json"
        new: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "names": []}
        known = json.loads(notes.read_text()) if notes.exists() else new
        self.has = {name: history[-1].place if history and name in known["names"] else NOTHING for name in self.names}
        for row in history:
            self.rows.put(row)
        about = (run, config, first_step, known["id"])
        self.thread = threading.Thread(target=self._serve, args=about, name="loggers", daemon=True)
        self.thread.start()
        self.begun.wait()
        notes.write_text(json.dumps(known | {"names": sorted({*known["names"], *self.loggers})}))
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
            self.failures.put(f"loggers are not done after {SECONDS_TO_CLOSE:.0f} s, and are no longer waited for")
        self._report_failures(None)

    def _begin(self, *about: Any) -> None:
        for name in self.names:
            try:
                self.loggers[name] = logger = LOGGERS[name](*about)
                if self.has[name] != NOTHING and logger.held is not None:
                    self.has[name] = logger.held
            except Exception as error:  # noqa: BLE001  border: other people's code, and the network
                self._failed(name, error)

    def _serve(self, *about: Any) -> None:
        """All of their life in one thread: some of them look for their run in it."""
        try:
            self._begin(*about)
        finally:
            self.begun.set()
        while (row := self.rows.get()) is not None:
            for name in [name for name in self.loggers if row.place > self.has[name]]:
                self.has[name] = row.place
                self._attempt(name, self.loggers[name].write, row.place[0], row.values)
        for name, logger in list(self.loggers.items()):
            self._attempt(name, logger.close, self.failed)

    def _attempt(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001  border: other people's code, and the network
            del self.loggers[name]
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        self.failures.put(f"field system.log: {name} failed and is left out from here on: {reason}")

    def _report_failures(self, step: int | None) -> None:
        """On the thread that has the record: it has one writer."""
        while not self.failures.empty():
            text = self.failures.get()
            self.warn(text)
            self.run.add_finding("logger", text, step)


def recorded_rows(run: Run) -> list[Row]:
    """All that loggers are told of a run, as far as it has come."""
    spans: dict[int, list[Mapping[str, Any]]] = {}
    for span in run.spans():
        spans.setdefault(span["step"], []).append(span)
    rows = [_of_evaluation(row.pop("step"), row) for row in run.evals()]
    for row in run.metrics():
        step = row.pop("step")
        rows.append(_of_step(step, row, spans.get(step, [])))
    return sorted(rows, key=lambda row: row.place)


def _of_step(step: int, metrics: Mapping[str, float], spans: Sequence[Mapping[str, Any]]) -> Row:
    return Row((step, True), _known(metrics) | {f"seconds/{span['name']}": span["seconds"] for span in spans})


def _of_evaluation(step: int, row: Mapping[str, float]) -> Row:
    return Row((step, False), {f"eval/{name}": value for name, value in _known(row).items()})


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    """Without those that do not apply or are not finite, which the record keeps as None."""
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
