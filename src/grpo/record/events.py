"""Callbacks: the events of a run as method calls. Loggers and the terminal view are callbacks too."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.errors import GrpoError, one_line
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run


class Callback:
    """Base class of callbacks: subclass it, override the events you need, and pass instances to `grpo.train`.

    Events arrive in order, one at a time, but not always on the same thread. While a callback handles an event (other
    than a warning) it may read the run. A callback that raises stops the run with status "failed"; everything recorded
    before stays.

    >>> class StopAtReward(Callback):
    ...     def on_step(self, step, metrics, groups):
    ...         if metrics["reward_mean"] > 0.9:
    ...             self.request_stop()
    >>> early = StopAtReward()
    >>> early.on_step(3, {"reward_mean": 0.95}, [])
    >>> early.stop_requested
    True
    """

    stop_requested = False

    def request_stop(self) -> None:
        """Stop the run with a checkpoint, at most one step later. Its status is then "stopped", and it can resume."""
        self.stop_requested = True

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        """The run begins. `first_step` is above 0 in a resumed run."""

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        """A step has been recorded: its metrics (docs/metrics.md) and the groups it trained on."""

    def on_evaluation_start(self, step: int, problems: int) -> None:
        """An evaluation on this many held-out problems begins, after `step` steps."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation has been recorded: accuracy, its interval, and the other evaluation metrics."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """The checkpoint after `step` steps is complete on the disk; `path / "model"` is a Hugging Face folder."""

    def on_warning(self, text: str) -> None:
        """The run reports a warning or a finding, which the record has too. Do not read the run here: a signal may call
        this at any time."""

    def on_end(self, run: Run) -> None:
        """The run has ended; `run.status` says how. Called after a failure too."""


class Terminal(Callback):
    """Prints warnings to stderr. The terminal views extend it; every run has exactly one."""

    def on_warning(self, text: str) -> None:
        print(f"grpo: {one_line(text)}", file=sys.stderr)


class Silent(Terminal):
    """The view of ranks other than 0: rank 0 reports for all."""

    def on_warning(self, text: str) -> None:
        pass


class Callbacks(Callback):
    """Passes every event to each callback in turn. Adds a `Terminal` where there is none."""

    def __init__(self, members: Sequence[Callback]):
        if not isinstance(members, Sequence):
            raise GrpoError(f"field callbacks: expected a list of callbacks; got {one_line(repr(members), 80)}")
        for member in members:
            if not isinstance(member, Callback):
                raise GrpoError(
                    f"field callbacks: {one_line(repr(member), 80)} is not an instance of a grpo.Callback subclass; "
                    "subclass grpo.Callback and pass an instance"
                )
        self.members = [*members]
        self.started: list[Callback] = []
        if not any(isinstance(member, Terminal) for member in members):
            self.members.append(Terminal())

    @property
    def stop_requested(self) -> bool:  # type: ignore[override]
        return any(member.stop_requested for member in self.members)

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        for member in self.members:
            member.stop_requested = False  # a callback may serve several runs
            self._call(member, "on_start", run, config, first_step)
            self.started.append(member)

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        for member in self.members:
            self._call(member, "on_step", step, metrics, groups)

    def on_evaluation_start(self, step: int, problems: int) -> None:
        for member in self.members:
            self._call(member, "on_evaluation_start", step, problems)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        for member in self.members:
            self._call(member, "on_evaluation", step, metrics)

    def on_checkpoint(self, step: int, path: Path) -> None:
        for member in self.members:
            self._call(member, "on_checkpoint", step, path)

    def on_warning(self, text: str) -> None:
        for member in self.members:
            self._call(member, "on_warning", text, fatal=False)

    def on_end(self, run: Run) -> None:
        for member in self.started:
            self._call(member, "on_end", run, fatal=False)

    def _call(self, member: Callback, event: str, *arguments: Any, fatal: bool = True) -> None:
        """A callback that raises stops the run. At the end, and in a warning, it is only reported: the error that ended
        the run must stay the one that is raised."""
        try:
            getattr(member, event)(*arguments)
        except Exception as error:  # border: user code may raise anything
            if fatal and isinstance(error, GrpoError):
                raise
            message = f"callback {type(member).__name__}: {event} raised {type(error).__name__}: {error}"
            if fatal:
                raise GrpoError(f"{message}; fix it, or leave the callback out") from error
            print(f"grpo: {one_line(message)}", file=sys.stderr)
