"""What a worker may use, set by itself before it runs people's code."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo.tasks.checkers.sandbox import FIRST_LENT_USER

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 24, 36
CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 21, 24
CAPABILITY_VERSION = 0x20080522
OTHERS_TO_COME = 256
LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0
    """Longest one call may take."""
    memory: int = 2 << 30
    """Bytes that a worker may take on top of what it began with."""
    processes: int = 64
    """Processes and threads that a worker and all its children may have at once."""
    workers: int = 0
    """How many work at the same time; 0: one per core, at most 16."""


def confine(limits: Limits) -> None:
    """For this process and all it starts. On other systems than Linux, time alone is limited: by the foreman."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not LINUX:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _limit(resource.RLIMIT_AS, _address_space() + limits.memory)
    if os.geteuid() == 0:
        _count_apart()
        _limit(resource.RLIMIT_NPROC, limits.processes)
    else:
        # Every process of this user counts, those of the other workers too, and those the user starts later.
        _limit(resource.RLIMIT_NPROC, _threads_of_user() + limits.processes * limits.workers + OTHERS_TO_COME)


def adopt_orphans() -> None:
    """Children of children that end become this process's own, so that it can find and end them."""
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """Children, their children and so on; empty where the system does not tell."""
    found = []
    with suppress(OSError):  # it may end while we look
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _count_apart() -> None:
    """The kernel does not limit how many processes root has. So the real user becomes one nobody has, whose processes
    are counted apart, and the capabilities that lift the limit go; the effective user, who opens files, stays."""
    with suppress(OSError):  # in a container without the right to change users, its own limit has to do
        os.setresuid(FIRST_LENT_USER + os.getpid(), 0, 0)
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for capability in (CAP_SYS_ADMIN, CAP_SYS_RESOURCE):
        _prctl(PR_CAPBSET_DROP, capability)
        for kind in range(3):  # effective, permitted, inheritable
            sets[kind] &= ~(1 << capability)
    libc.capset(header, sets)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _address_space() -> int:
    """Bytes of it in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _threads_of_user() -> int:
    """How many this user has in all: the limit counts every one, not only those of a worker."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while we look
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count
