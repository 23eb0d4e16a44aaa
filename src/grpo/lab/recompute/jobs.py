"""Starts recomputations, one at a time, and keeps the latest results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grpo.errors import GrpoError
from grpo.lab.trials.runner import BusyError, end
from grpo.record.columns import FLOAT_ARRAYS

MOST_KEPT = 16


class Place(NamedTuple):
    """A group of a run."""

    folder: Path
    name: str
    step: int
    group: int
    created: str
    """When the run began: one trained again under the same name has other tokens."""


def command(place: Place) -> list[str]:
    return [sys.executable, "-m", "grpo.lab.recompute.worker", *map(str, place[:4])]


def token_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a result as `Run.token_arrays` has them."""
    return [
        {name: np.array(value, np.float32) if name in FLOAT_ARRAYS and value else value for name, value in row.items()}
        | {"tokens": np.array(row["tokens"], np.int32), "observed": None, "observed_after": None}
        for row in result["rows"]
    ]


class Job:
    """A recomputation and its process; a thread reads the process's messages."""

    def __init__(self, place: Place):
        self.place = place
        self.status, self.error, self.done, self.total = "running", "", 0, 0
        self.result: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            command(place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        errors: list[str] = []
        # Read in a thread: a full pipe would block the process.
        error_reader = threading.Thread(target=lambda: errors.extend(self.process.stderr or ()), daemon=True)
        error_reader.start()
        try:
            with self.process as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self._hear(line)
                error_reader.join()
        finally:
            with self.lock:
                if self.status == "running":
                    self.status = "done" if self.result else "failed"
                    last = errors[-1].strip() if errors else f"the process ended with code {self.process.returncode}"
                    self.error = self.error or ("" if self.result else last)

    def _hear(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # border: a process that was killed leaves half a line
            return
        with self.lock:
            if "result" in message:
                self.result = message["result"]
            elif "error" in message:
                self.error = message["error"]
            else:
                self.done, self.total = message["done"], message["total"]

    def cancel(self) -> None:
        with self.lock:
            if self.status != "running":
                return
            self.status = "cancelled"
        end(self.process)


class Jobs:
    """One recomputation at a time; the latest results stay in memory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[Place, Job] = {}

    def start(self, place: Place) -> Job:
        with self.lock:
            known = self.jobs.get(place)
            if known and known.status in ("running", "done"):
                return known
            if busy := next((job for job in self.jobs.values() if job.status == "running"), None):
                raise BusyError(
                    f"tokens of group {busy.place.group} of step {busy.place.step} of {busy.place.name} are being "
                    "recomputed; wait for it or cancel it"
                )
            self.jobs.pop(place, None)
            self.jobs[place] = Job(place)
            for old in list(self.jobs)[:-MOST_KEPT]:
                del self.jobs[old]
            return self.jobs[place]

    def find(self, place: Place) -> Job | None:
        return self.jobs.get(place)

    def rows(self, place: Place) -> list[dict[str, Any]]:
        """The recomputed tokens of a group; none where they were not."""
        job = self.find(place)
        return token_rows(job.result) if job and job.status == "done" else []

    def cancel(self, place: Place) -> Job:
        job = self.find(place)
        if job is None:
            raise GrpoError(f"nothing is being recomputed for group {place.group} of step {place.step}")
        job.cancel()
        return job

    def close(self) -> None:
        for job in list(self.jobs.values()):
            job.cancel()
            job.listener.join()
