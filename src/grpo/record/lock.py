"""One trainer per run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from grpo.errors import GrpoError

LOOKS = 5
"""Who only looks (`is_left_behind`) has the lock for an instant; who is refused so often is refused by a trainer."""


class RunLock:
    """Held until closed, or until the process ends in any way at all."""

    def __init__(self, run_path: Path):
        self._descriptor = os.open(run_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not any(_taken(self._descriptor, fcntl.LOCK_EX, wait=0.02 * look) for look in range(LOOKS)):
            holder = os.pread(self._descriptor, 20, 0).decode() or "unknown"
            os.close(self._descriptor)
            raise GrpoError(
                f"field run: {run_path.name} is being trained by process {holder}; wait for it, or choose --run OTHER"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def is_left_behind(run_path: Path) -> bool:
    """Whether a trainer had the lock and nobody has it now: one whose run still says "running" was killed."""
    try:
        descriptor = os.open(run_path / "lock", os.O_RDONLY)
    except OSError:  # never locked, or not for us to see
        return False
    try:
        return _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, kind: int, wait: float = 0.0) -> bool:
    time.sleep(wait)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
