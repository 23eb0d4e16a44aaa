"""File lock: one trainer per run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from grpo.errors import GrpoError

ATTEMPTS = 5
"""A reader (`is_abandoned`) holds the lock for an instant; after this many refusals the holder is a trainer."""


class RunLock:
    """Held until closed, or until the process ends, however it ends."""

    def __init__(self, run_path: Path):
        self._descriptor = os.open(run_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not any(_acquire(self._descriptor, fcntl.LOCK_EX, wait=0.02 * attempt) for attempt in range(ATTEMPTS)):
            holder = os.pread(self._descriptor, 20, 0).decode() or "unknown"
            os.close(self._descriptor)
            raise GrpoError(
                f"field run: {run_path.name} is being trained by process {holder}; wait for it, or choose --run OTHER"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def is_abandoned(run_path: Path) -> bool:
    """Whether a trainer once held the lock and none does now. If the record says "running", the run was killed."""
    try:
        descriptor = os.open(run_path / "lock", os.O_RDONLY)
    except OSError:  # never locked, or not readable
        return False
    try:
        return _acquire(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, kind: int, wait: float = 0.0) -> bool:
    time.sleep(wait)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
