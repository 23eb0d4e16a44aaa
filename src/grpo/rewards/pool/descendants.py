"""Processes that a worker starts: found through /proc, and killed. On systems without /proc none are found."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_CHILD_SUBREAPER = 36
RLIMIT_LOCKS = 10
"""A limit without effect since Linux 2.4, inherited by every descendant: it holds the process id of the worker."""
LOCKS_LINE = "Max file locks"


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, so that it can find and kill them."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def mark_descendants() -> None:
    """Marks this process and all it will start, so that `worker_of` finds the worker of an orphan."""
    with suppress(ValueError, OSError):  # a lower limit is set already: its orphans end with the next worker that ends
        resource.setrlimit(RLIMIT_LOCKS, (os.getpid(), os.getpid()))


def worker_of(pid: int) -> int | None:
    """The process id of the worker that started a process, directly or not; None where that is not known."""
    with suppress(OSError, ValueError):  # the process may end meanwhile
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith(LOCKS_LINE):
                return int(line.removeprefix(LOCKS_LINE).split()[0])
    return None


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_with_descendants() -> None:
    """Kills this process and everything under it; never returns."""
    while below := descendants(os.getpid()):
        kill_all(below)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
    os.killpg(0, signal.SIGKILL)


class Leftovers:
    """Processes that a call left behind, for the worker that made it."""

    def __init__(self) -> None:
        self.faults = _faults_of_reaped()

    def end_orphans(self) -> None:
        """Kills orphans of this worker, which its supervisor has adopted and will reap."""
        # A process was orphaned only if its parent, a descendant of this one, has ended: if no child was reaped, none.
        before, self.faults = self.faults, _faults_of_reaped()
        if self.faults != before:
            orphans = [pid for pid in children(os.getppid()) if pid != os.getpid() and worker_of(pid) == os.getpid()]
            kill_all(found for orphan in orphans for found in (orphan, *descendants(orphan)))

    def remain(self) -> bool:
        """Whether this process has children, running or not yet reaped."""
        if not LINUX:
            return False
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


def _faults_of_reaped() -> int:
    """Page faults of all children that were reaped: a number that every one of them raises."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
