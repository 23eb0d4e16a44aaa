"""Cores and memory of this host that a process may use: within its affinity (taskset, Slurm) and the limits of its
cgroups (containers, systemd, Slurm)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def affinity() -> frozenset[int]:
    """Numbers of the cores that this process may run on."""
    # macOS does not bind processes to cores.
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def usable_cores(sharing: int = 1, ranks: int = 1) -> int:
    """Cores for this process, at least one. `sharing` ranks have its affinity; all `ranks` of the host share the quota
    of its cgroups. (srun may bind each of its tasks to cores of its own.)"""
    return max(1, int(min(len(affinity()) // sharing, _cpu_quota() / ranks)))


def _cpu_quota() -> float:
    """Number of cores whose time its cgroups allow this process; infinite without a limit."""
    quotas = [math.inf]
    for folder in _cgroups("cpu"):
        with suppress(OSError, ValueError):  # no limit: no such files, or "max"
            if (of_version_2 := folder / "cpu.max").exists():
                quota, period = map(int, of_version_2.read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            quotas += [quota / period] if quota > 0 else []
    return min(quotas)


def memory_left() -> float:
    """Bytes that its cgroups still allow this process; infinite without a limit. Cached files count as free, as
    in MemAvailable."""
    left = [math.inf]
    for folder in _cgroups("memory"):
        with suppress(OSError, ValueError):  # no limit: no such files, or "max"
            if (folder / "memory.max").exists():
                limited, prefix = ("memory.max", "memory.current"), ""
            else:
                limited, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
            limit, used = (int((folder / name).read_text()) for name in limited)
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            left.append(limit - used + cached)
    return min(left)


def _cgroups(controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and of those around it, of versions 1 and 2; on other systems none."""
    with suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                own = CGROUPS / (controller if controllers else "") / path.lstrip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(CGROUPS))
