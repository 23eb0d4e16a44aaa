"""Where trials are asked for: one at a time, each in a process of its own, which can be ended."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.trials.outcome import Outcome
from grpo.lab.trials.spec import Trial

MOST_KEPT = 8


class BusyError(GrpoError):
    """Another trial is running."""


class UnknownTrialError(GrpoError):
    """No trial has that id."""


class Running:
    """A trial and the process that trains it; a thread hears what it tells."""

    def __init__(self, trial: Trial, rewards: Sequence[str]):
        self.id, self.trial, self.outcome = secrets.token_urlsafe(9), trial, Outcome(trial)
        self.status, self.error, self.version = "running", "", 0
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory(prefix="grpo-trial-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grpo.lab.trials.perform"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # it ends with all that it started
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin is not None
        asked = {"trial": trial.as_json(), "rewards": list(rewards), "folder": self.folder.name}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.close()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        complaints: list[str] = []
        # Read on the side: a full pipe would hold the trainer up.
        aside = threading.Thread(target=lambda: complaints.extend(self.process.stderr or ()), daemon=True)
        aside.start()
        for line in self.process.stdout:
            told = json.loads(line)
            with self.lock:
                if told["kind"] == "failed":
                    self.error = told["error"]
                else:
                    self.outcome.hear(told)
                self.version += 1
        code = self.process.wait()
        aside.join()
        with self.lock:
            if self.status == "running":
                self.status = "finished" if code == 0 and not self.error else "failed"
                if code and not self.error:
                    self.error = complaints[-1].strip() if complaints else f"the trainer ended with code {code}"
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
        with suppress(ProcessLookupError):  # border: it may just have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)

    def about(self) -> dict[str, Any]:
        done, asked = self.outcome.steps_done, self.outcome.steps_asked
        return {"id": self.id, "name": self.trial.name, "status": self.status, "done": done, "asked": asked}

    def state(self) -> dict[str, Any]:
        with self.lock:
            return self.about() | {"error": self.error, "version": self.version, "outcome": self.outcome.summary()}


class Desk:
    """One trial at a time; the latest that ended are remembered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.trials: dict[str, Running] = {}

    def current(self) -> Running | None:
        return next((trial for trial in self.trials.values() if trial.status == "running"), None)

    def start(self, data: Any, rewards: Sequence[str] = ()) -> Running:
        trial = Trial.of(data, rewards)
        with self.lock:
            if running := self.current():
                about = running.about()
                name = f" ({about['name']})" if about["name"] else ""
                raise BusyError(
                    f"another trial{name} is training: {about['done']} of {about['asked']} steps are done. "
                    "One runs at a time; wait for it, or cancel it"
                )
            started = Running(trial, rewards)
            self.trials[started.id] = started
            for old in list(self.trials)[:-MOST_KEPT]:
                del self.trials[old]
            return started

    def find(self, trial_id: str) -> Running:
        if trial_id not in self.trials:
            raise UnknownTrialError("no trial of that id; it was started by another lab, or long ago")
        return self.trials[trial_id]

    def close(self) -> None:
        for trial in self.trials.values():
            trial.cancel()
