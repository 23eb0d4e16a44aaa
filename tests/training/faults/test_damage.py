"""Damaged checkpoints, lost steps, and replayed steps that differ."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

from grpo.cli.main import main
from helpers.faults import Whole, findings, last_step
from helpers.trainer import Orders, Trainer, assert_same, command

# Damaged checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that kept the checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(command(folder, "job", "--checkpoints.keep", "2")) == 0
    assert {"step-000004", "step-000006"} <= set(os.listdir(folder / "job" / "checkpoints"))
    return folder


@pytest.mark.parametrize("file", ["optimizer.safetensors", "model/model.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    finished: Path, tmp_path: Path, whole: Whole, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    run = tmp_path / "runs" / "job"
    shutil.copytree(finished / "job", run)
    damaged = run / "checkpoints" / "step-000006"
    content = bytearray((damaged / file).read_bytes())
    content[len(content) // 2] ^= 16
    (damaged / file).write_bytes(content)
    assert main(command(tmp_path / "runs")) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo: checkpoint step-000006 is damaged: ")
    assert line.endswith("; renamed to damaged-step-000006")
    assert f"{damaged / file}" in line or file == "manifest.json"
    assert findings(run) == [("damaged", None, line.removeprefix("grpo: "))]
    assert (run / "checkpoints" / "damaged-step-000006" / file).read_bytes() == content
    assert_same(run, whole())


def test_without_a_whole_checkpoint_the_run_is_made_again(
    finished: Path, tmp_path: Path, whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "job"
    shutil.copytree(finished / "job", run)
    kept = sorted(os.listdir(run / "checkpoints"), reverse=True)
    for name in kept:
        (run / "checkpoints" / name / "optimizer.safetensors").unlink()
    assert main(command(tmp_path / "runs")) == 0
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [
        f"grpo: checkpoint {name} is damaged: {run / 'checkpoints' / name}/optimizer.safetensors is missing; "
        f"renamed to damaged-{name}"
        for name in kept
    ]
    assert last == "grpo: job has no complete checkpoint: it starts again from the first step"
    assert [kind for kind, _, _ in findings(run)] == ["damaged"] * (len(kept) + 1)
    assert_same(run, whole())


def test_models_are_not_taken_from_a_damaged_checkpoint(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "job"
    shutil.copytree(finished / "job", run)
    (run / "checkpoints" / "step-000006" / "optimizer.safetensors").unlink()
    for argv in (
        ["export", "job", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")],
        ["sample", "job", "1+1=", "--runs", str(tmp_path / "runs")],
    ):
        assert main(argv) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "step-000006/optimizer.safetensors is missing" in line
        assert "resume the run, which uses the checkpoint before it" in line
    assert not (tmp_path / "out").exists()


def test_a_record_that_lost_steps_before_the_checkpoint_is_made_whole(
    finished: Path, tmp_path: Path, whole: Whole
) -> None:
    """As a power cut leaves it: a checkpoint is synced to the disk at once, the record's last steps may not be."""
    run = tmp_path / "runs" / "job"
    shutil.copytree(finished / "job", run)
    db = sqlite3.connect(run / "run.db")
    db.execute("PRAGMA foreign_keys = ON")
    with db:
        assert db.execute("DELETE FROM steps WHERE step >= 4").rowcount == 2
    db.close()
    assert main(command(tmp_path / "runs")) == 0
    assert_same(run, whole())


# A replay that differs


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        ("UPDATE metrics SET value = value + 1 WHERE step = 3 AND name = 'kl'", "metric kl was "),
        ("UPDATE completions SET text = 'other' WHERE step = 3 AND group_index = 1 AND sample_index = 2",
         "completion 1/2 was ('other', "),
    ],
)  # fmt: skip
def test_a_step_computed_again_that_differs_is_reported(
    tmp_path: Path, whole: Whole, capsys: pytest.CaptureFixture[str], tamper: str, named: str
) -> None:
    trainer = Trainer(command(tmp_path), tmp_path, Orders(kill_at="record.committed", count=4))
    assert trainer.ended() == -signal.SIGKILL
    run = tmp_path / "job"
    assert last_step(run) == 3
    db = sqlite3.connect(run / "run.db")
    with db:
        assert db.execute(tamper).rowcount == 1
    db.close()
    assert main(command(tmp_path)) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "computed again" in line)
    assert line.startswith(f"grpo: step 3 was computed again and differs: {named}")
    assert ("replay", 3, line.removeprefix("grpo: ")) in findings(run)
    assert_same(run, whole())
