"""Starts and cancels trials: one at a time, each in its own process. One more process waits for the next trial."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.trials.outcome import Outcome
from grpo.lab.trials.spec import Trial
from grpo.lab.trials.worker import start_worker

MOST_KEPT = 8
IDLE_SECONDS = 600
"""A waiting worker without a trial ends after this time."""


class BusyError(GrpoError):
    """Another trial is running."""


class UnknownTrialError(GrpoError):
    """No trial has that id."""


class Running:
    """A trial and the process that trains it; a thread reads the process's messages."""

    def __init__(self, trial: Trial, rewards: Sequence[str], worker: subprocess.Popen[str]):
        self.id, self.trial, self.outcome = secrets.token_urlsafe(9), trial, Outcome(trial)
        self.status, self.error, self.version = "running", "", 0
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix="grpo-trial-", ignore_cleanup_errors=True)
        request = {"trial": trial.as_json(), "rewards": list(rewards), "folder": self.folder.name}
        self.process = _asked(worker, json.dumps(request))
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        errors: list[str] = []
        # Read in a thread: a full pipe would block the trainer.
        error_reader = threading.Thread(target=lambda: errors.extend(self.process.stderr or ()), daemon=True)
        error_reader.start()
        for line in self.process.stdout:
            message = json.loads(line)
            with self.lock:
                if message["kind"] == "failed":
                    self.error = message["error"]
                else:
                    self.outcome.add(message)
                self.version += 1
        code = self.process.wait()
        error_reader.join()
        with self.lock:
            if self.status == "running":
                self.status = "finished" if code == 0 and not self.error else "failed"
                if code and not self.error:
                    self.error = errors[-1].strip() if errors else f"the trainer ended with code {code}"
            self.version += 1
        self.process.stdout.close()
        self.process.stderr.close()
        self.folder.cleanup()

    def cancel(self) -> None:
        with self.lock:
            if self.status != "running":
                return
            self.status = "cancelled"
            self.version += 1
        end(self.process)

    def about(self) -> dict[str, Any]:
        done, total = self.outcome.steps_done, self.outcome.steps_total
        return {"id": self.id, "name": self.trial.name, "status": self.status, "done": done, "total": total}

    def state(self) -> dict[str, Any]:
        with self.lock:
            return self.about() | {"error": self.error, "version": self.version, "outcome": self.outcome.summary()}


def _asked(worker: subprocess.Popen[str], request: str) -> subprocess.Popen[str]:
    """Sends the request to the worker, or to a new one if it has died; returns the one that has it."""
    assert worker.stdin is not None
    try:
        worker.stdin.write(request + "\n")
        worker.stdin.close()
    except BrokenPipeError:  # border: a waiting process may have been killed
        with worker:
            end(worker)
        return _asked(start_worker(), request)
    return worker


def end(process: subprocess.Popen[str]) -> None:
    """Ends a worker and its children."""
    with suppress(ProcessLookupError):  # border: it may have ended already
        os.killpg(process.pid, signal.SIGKILL)


class Runner:
    """Runs one trial at a time; keeps the latest ended ones, and a worker that waits for the next trial."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.trials: dict[str, Running] = {}
        self.serving = False
        self.waiting: subprocess.Popen[str] | None = None
        self.timer: threading.Timer | None = None

    def open(self) -> None:
        """Called when the server starts: until `close`, a worker may wait."""
        self.serving = True

    def prepare(self) -> None:
        """Starts the waiting worker, if there is none and no trial is running; one that waits stays longer."""
        with self.lock:
            if not self.serving or self.current():
                return
            if self.waiting is None or self.waiting.poll() is not None:
                self.waiting = start_worker()
            self._stop_timer()
            self.timer = threading.Timer(IDLE_SECONDS, self._dismiss, [self.waiting])
            self.timer.daemon = True
            self.timer.start()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _dismiss(self, idle: subprocess.Popen[str] | None) -> None:
        """Ends the worker, if it is still waiting."""
        with self.lock:
            if self.waiting is not None and self.waiting is idle:
                with self.waiting as worker:  # closes its pipes and waits for its end
                    end(worker)
                self.waiting = None

    def _take(self) -> subprocess.Popen[str]:
        self._stop_timer()
        worker, self.waiting = self.waiting, None
        return worker if worker is not None and worker.poll() is None else start_worker()

    def current(self) -> Running | None:
        return next((trial for trial in self.trials.values() if trial.status == "running"), None)

    def start(self, data: Any, rewards: Sequence[str] = ()) -> Running:
        trial = Trial.of(data, rewards)
        with self.lock:
            if running := self.current():
                about = running.about()
                name = f" ({about['name']})" if about["name"] else ""
                raise BusyError(
                    f"another trial{name} is training: {about['done']} of {about['total']} steps are done. "
                    "Only one can run at a time; wait for it or cancel it"
                )
            started = Running(trial, rewards, self._take())
            self.trials[started.id] = started
            for old in list(self.trials)[:-MOST_KEPT]:
                del self.trials[old]
            return started

    def find(self, trial_id: str) -> Running:
        if trial_id not in self.trials:
            raise UnknownTrialError("no trial has this id; it may be from an earlier start of the lab")
        return self.trials[trial_id]

    def close(self) -> None:
        for trial in self.trials.values():
            trial.cancel()
        with self.lock:
            self.serving = False
            self._stop_timer()
        self._dismiss(self.waiting)
