"""Cores and memory: of the machine, of the affinity, and of the cgroups that hold a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from grpo.config import Scoring
from grpo.distributed import host
from grpo.distributed.host import usable_cores
from grpo.distributed.world import World
from grpo.model.device import free_memory
from grpo.rewards.share import share_of_rank
from helpers.ranks import ranks


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /sys/fs/cgroup; this process is in the group /job/step, of versions 1 and 2."""
    own = tmp_path / "own"
    own.write_text("4:memory:/job/step\n2:cpu,cpuacct:/job/step\n1:name=systemd:/x\n0::/job/step\n")
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    monkeypatch.setattr(host, "OWN_CGROUPS", own)
    monkeypatch.setattr(host, "affinity", lambda: frozenset(range(8)))
    for folder in ("job/step", "cpu/job/step", "memory/job/step"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_cores_are_those_of_the_affinity(cgroups: Path) -> None:
    assert [usable_cores(sharing) for sharing in (1, 2, 3, 16)] == [8, 4, 2, 1]


@pytest.mark.parametrize("quota", ["250000 100000", "max 100000"])
@pytest.mark.parametrize("folder", ["job/step", "job", "."])
def test_a_quota_of_any_group_around_it_limits_cores(cgroups: Path, folder: str, quota: str) -> None:
    """All ranks of the host share it, also those that are bound to cores of their own."""
    (cgroups / folder / "cpu.max").write_text(f"{quota}\n")
    cores = [usable_cores(), usable_cores(1, 2), usable_cores(2, 2), usable_cores(1, 8)]
    assert cores == ([8, 8, 4, 8] if quota.startswith("max") else [2, 1, 1, 1])


def test_a_quota_of_version_1(cgroups: Path) -> None:
    for quota, cores in (("-1", 8), ("300000", 3), ("5000", 1)):
        (cgroups / "cpu/job/cpu.cfs_quota_us").write_text(f"{quota}\n")
        (cgroups / "cpu/job/cpu.cfs_period_us").write_text("100000\n")
        assert usable_cores() == cores


def test_free_memory_is_that_of_the_cgroup(cgroups: Path) -> None:
    def free() -> int:
        return free_memory(torch.device("cpu"))

    machine = free()
    (cgroups / "job/memory.max").write_text("1000000\n")
    (cgroups / "job/memory.current").write_text("400000\n")
    (cgroups / "job/memory.stat").write_text("anon 300000\nactive_file 30000\ninactive_file 20000\n")
    assert free() == 650_000 < machine
    (cgroups / "memory/job/memory.limit_in_bytes").write_text("700000\n")
    (cgroups / "memory/job/memory.usage_in_bytes").write_text("300000\n")
    (cgroups / "memory/job/memory.stat").write_text(
        "inactive_file 0\ntotal_inactive_file 4000\ntotal_active_file 6000\n"
    )
    assert free() == 410_000


def test_workers_are_as_many_as_cores() -> None:
    world = World(size=8, local_size=4, cores=3)
    assert [share_of_rank(Scoring(workers=workers), world).workers for workers in (0, 2, 40)] == [3, 1, 10]
    assert share_of_rank(Scoring(), World(size=8, local_size=8, cores=30)).workers == 2, "16 on a host"


def cores_of(world: World) -> int:
    return world.cores


def test_ranks_share_the_cores_that_they_have_in_common() -> None:
    assert ranks(2, cores_of) == [max(1, usable_cores() // 2)] * 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_a_process_that_is_bound_to_a_core_uses_one() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert (usable_cores(), World().cores) == (1, 1)
    finally:
        os.sched_setaffinity(0, before)
