"""A full disk, a clock that steps back, other languages and time zones.

A quick form is part of `make test`; `make faults` (GRPO_FAULTS=all) runs every case.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grpo
from grpo.cli.main import main
from grpo.config import Config
from grpo.config.schema import parse_train
from grpo.errors import DiskFullError
from grpo.model.files import write_model
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.store import Run
from helpers.faults import ALL, Whole, assert_resumed, findings, status, tree
from helpers.trainer import assert_same, command

# No space left


def test_a_resume_asks_only_for_the_space_that_is_still_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run has written already was part of what it needed to begin."""
    assert main(command(tmp_path, "job", "--steps", "4")) == 0
    size = sum(len(content) for content in tree(tmp_path / "job" / "checkpoints" / "step-000004").values())
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as nearly_full:
        # Room for the next checkpoint and for the best one, and some for the record.
        nearly_full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * size + 500_000))
        assert main(command(tmp_path)) == 0
    assert status(tmp_path / "job") == "finished"


class Fill(Callback):
    """Fills the disk after a step, but for some bytes."""

    def __init__(self, disk: Path, step: int, leave: int):
        self.disk, self.step, self.leave = disk, step, leave

    def on_step(self, step: int, *_: object) -> None:
        if step == self.step:
            (self.disk / "filler").write_bytes(b"1" * (shutil.disk_usage(self.disk).free - self.leave))


def config_of(argv: list[str]) -> Config:
    return parse_train(argv[1:])


@pytest.mark.parametrize("leave", [600_000, 0], ids=["none for a checkpoint", "none at all"])
def test_a_full_disk_stops_the_run_and_resume_finishes_it(
    small_disk: Path,
    whole: Whole,
    leave: int,
) -> None:
    with pytest.raises(DiskFullError) as caught:
        grpo.train(config_of(command(small_disk)), callbacks=[Fill(small_disk, 3, leave)])
    assert str(caught.value).startswith(f"{small_disk}/job/")
    assert "the disk is full" in str(caught.value)
    checkpoint = Checkpoints(small_disk / "job").newest()
    assert checkpoint is not None
    assert checkpoint.damage() == ""
    (small_disk / "filler").unlink()
    assert main(command(small_disk)) == 0
    assert_same(small_disk / "job", whole())
    assert findings(small_disk / "job") == []


def test_no_run_is_half_made_on_a_full_disk(small_disk: Path) -> None:
    Fill(small_disk, 0, leave=0).on_step(0)
    with pytest.raises(DiskFullError, match=r"job/run\.db: the disk is full"):
        Run.create(small_disk, "job", kind="grpo", config={})
    assert os.listdir(small_disk) == ["filler"]
    (small_disk / "filler").unlink()
    Run.create(small_disk, "job", kind="grpo", config={}).close()


def test_a_record_that_finds_no_space_stops_the_run(tmp_path: Path, whole: Whole) -> None:
    class Cramped(Callback):
        def on_start(self, run: Run, *_: object) -> None:
            self.db = run._db

        def on_step(self, step: int, *_: object) -> None:
            if step == 3:
                [pages] = self.db.execute("PRAGMA page_count").fetchone()
                self.db.execute(f"PRAGMA max_page_count = {pages}")

    argv = command(tmp_path, "job", "--system.token_groups", "4")
    with pytest.raises(DiskFullError, match=r"job/run\.db: the disk is full; everything recorded before is intact$"):
        grpo.train(config_of(argv), callbacks=[Cramped()])
    assert status(tmp_path / "job") == "failed"
    assert main(argv) == 0
    assert_same(tmp_path / "job", whole("--system.token_groups", "4"))


def without_space(monkeypatch: pytest.MonkeyPatch, *, writes: set[int]) -> None:
    """The writes of these numbers, from 1, find the disk full."""
    written = 0

    def write(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written in writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_model(*arguments)

    monkeypatch.setattr("grpo.model.files.write_model", write)
    monkeypatch.setattr("grpo.training.recorder.RETRY_SECONDS", 0.01)


def test_waiting_for_space_before_a_checkpoint(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, asked = shutil.disk_usage, 0

    def usage(path: Path) -> Any:
        nonlocal asked
        asked += 1
        return SimpleNamespace(free=100) if asked in (3, 4, 5) else real(path)  # first the preflight, then step 2

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr("grpo.training.recorder.RETRY_SECONDS", 0.01)
    assert main(command(tmp_path, "job", "--checkpoints.disk_full", "wait")) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("the disk is full, step-" in line and "retrying every 0 s" in line for line in lines)
    assert_resumed(tmp_path / "job", whole())


@pytest.mark.parametrize("writes", [{1}, {2}, {3}, {4}, {1, 2}, {3, 4}, {4, 5}] if ALL else [{2}, {4}], ids=str)
def test_waiting_for_space_during_a_checkpoint(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, writes: set[int]
) -> None:
    """The last checkpoint is waited for as the others are."""
    without_space(monkeypatch, writes=writes)
    assert main(command(tmp_path, "job", "--checkpoints.disk_full", "wait")) == 0
    assert_resumed(tmp_path / "job", whole())


def test_stopping_for_want_of_space(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as full:
        without_space(full, writes={2})
        assert main(command(tmp_path)) == 2
    run = tmp_path / "job"
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo: {run / 'checkpoints'}: the disk is full, step-00000")
    assert line.endswith(" cannot be written; older ones are intact")
    assert status(run) == "failed"
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (2, "")
    assert main(command(tmp_path)) == 0
    assert_resumed(run, whole())


# Clock, time zone, language


SURROUNDINGS = {
    "ASCII, far east": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Pacific/Kiritimati"},
    "Turkish, far west": {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr", "TZ": "Pacific/Niue", "PYTHONHASHSEED": "7"},
    "Latin-1": {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONIOENCODING": "latin-1", "TZ": "Asia/Kathmandu"},
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS if ALL else list(SURROUNDINGS)[:1])
def test_language_and_time_zone_do_not_matter(tmp_path: Path, whole: Whole, surroundings: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **SURROUNDINGS[surroundings]}
    argv = [sys.executable, "-m", "grpo", *command(tmp_path, "job", "--no-quiet")]
    done = subprocess.run(argv, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert_same(tmp_path / "job", whole())


def test_a_clock_that_steps_back_does_not_matter(tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def clock() -> Iterator[float]:
        now = 2e9
        while True:
            now -= 3600
            yield now

    hours = clock()
    monkeypatch.setattr(time, "time", lambda: next(hours))
    assert main(command(tmp_path)) == 0
    monkeypatch.undo()
    assert_resumed(tmp_path / "job", whole())
