"""One trainer per run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from grpo.errors import GrpoError


class RunLock:
    """Held until closed, or until the process ends in any way at all."""

    def __init__(self, run_path: Path):
        self._descriptor = os.open(run_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode() or "unknown"
            os.close(self._descriptor)
            raise GrpoError(
                f"field run: {run_path.name} is being trained by process {holder}; wait for it, or choose --run OTHER"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)
