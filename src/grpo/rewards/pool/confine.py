"""Resource limits that a worker sets for itself before it runs people's code."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo.rewards.pool.descendants import LINUX, mark_descendants
from grpo.tasks.checkers.sandbox import FIRST_UNUSED_UID

PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 21, 24
CAPABILITY_VERSION = 0x20080522
OTHER_PROCESSES = 256


@dataclass(frozen=True)
class Limits:
    seconds: float = 10.0
    """Time limit of one call."""
    memory: int = 2 << 30
    """Bytes that a worker may allocate in addition to those it started with."""
    processes: int = 64
    """Processes and threads of a worker and all its children at one time."""
    workers: int = 0
    """Worker processes; 0: one per core, at most 16."""


def confine(limits: Limits) -> None:
    """Limits this process and all it starts. On systems other than Linux only the supervisor's time limit holds."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not LINUX:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    mark_descendants()
    _limit(resource.RLIMIT_AS, _address_space() + limits.memory)
    if os.geteuid() == 0:
        _use_separate_uid()
        _limit(resource.RLIMIT_NPROC, limits.processes)
    else:
        # The kernel counts all processes of this user: other workers, and what the user starts later.
        _limit(resource.RLIMIT_NPROC, _threads_of_user() + limits.processes * limits.workers + OTHER_PROCESSES)


def _use_separate_uid() -> None:
    """Changes the real user to an unused one, because the kernel does not limit the processes of root, and drops the
    capabilities that lift the limit. The effective user, who opens files, stays root."""
    with suppress(OSError):  # a container without the right to change users has a limit of its own
        os.setresuid(FIRST_UNUSED_UID + os.getpid(), 0, 0)
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
    """Bytes of address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _threads_of_user() -> int:
    """Threads of all processes of this user: the kernel's limit counts every one."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may end meanwhile
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count
