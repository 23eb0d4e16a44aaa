"""Damaged checkpoints, lost steps, and replayed steps that differ."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
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


# A damaged record


@pytest.mark.parametrize("place", ["header", "middle"])
def test_a_damaged_record_names_the_model_that_can_still_be_used(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    run = tmp_path / "job"
    shutil.copytree(finished / "job", run)
    content = bytearray((run / "run.db").read_bytes())
    start = 0 if place == "header" else 8192  # past the page of the schema, and the one of `meta`
    content[start:] = os.urandom(len(content) - start)
    (run / "run.db").write_bytes(content)
    model = run / "checkpoints" / "step-000006" / "model"
    for argv in (
        ["runs", "job", "--runs", str(tmp_path)],
        ["runs", "job", "--json", "--runs", str(tmp_path)],
        ["export", "job", str(tmp_path / "out"), "--runs", str(tmp_path)],
        ["sample", "job", "1+1=", "--runs", str(tmp_path)],
        command(tmp_path),
    ):
        assert main(argv) == 2, argv
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"grpo: field run: {run / 'run.db'} cannot be read as a run record (")
        assert line.endswith(
            f"); its newest model can still be used: grpo sample {model} PROMPT, grpo train --model {model}"
        )
    assert (run / "run.db").read_bytes() == content
    # What the line says works, and an export of it is a copy of the folder.
    assert main(["sample", str(model), "1+1=", "-n", "1"]) == 0
    assert main([*command(tmp_path / "other", "next"), "--model", str(model), "--task", "arithmetic:easy"]) == 0


# Read-only media


def test_a_run_on_read_only_media_is_read(finished: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    shutil.copytree(finished / "job", media / "job")
    shutil.copytree(finished / "job", media / "torn")
    (media / "torn" / "run.db-wal").write_bytes(b"steps of a run that was killed, without the index")
    commands = [
        ["runs", "--runs", str(media)],
        ["runs", "job", "--json", "--runs", str(media)],
        ["sample", "job", "1+1=", "-n", "1", "--runs", str(media)],
        ["eval", "job", "--problems", "4", "--runs", str(media)],
        ["export", "job", str(tmp_path / "out"), "--runs", str(media)],
        ["runs", "torn", "--runs", str(media)],
        command(media),
    ]
    program = f"""
import os
from pathlib import Path
from grpo.cli.main import main
from grpo.lab.catalogue import Catalogue
try:
    Path({str(media)!r}, "x").touch()
except OSError:
    print("read-only", [main(argv) for argv in {commands}])
    print({{row["id"]: row["status"] for row in Catalogue(Path({str(media)!r})).listing() if not row["example"]}})
"""
    mount = f"mount --bind {media} {media} && mount -o remount,bind,ro {media}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shell = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{mount} && exec "$0" -c "$1"']
    done = subprocess.run([*shell, sys.executable, program], capture_output=True, text=True, env=environment)
    if "read-only" not in done.stdout:
        assert "unshare: " in done.stderr or "mount: " in done.stderr, done.stderr
        pytest.skip("this machine does not permit mounts")
    assert "read-only [0, 0, 0, 0, 0, 2, 2]" in done.stdout, done.stderr
    assert "{'job': 'finished', 'torn': 'unreadable'}" in done.stdout
    torn, resumed = done.stderr.splitlines()[-2:]
    assert torn == (
        f"grpo: field run: {media / 'torn'} cannot be written, and run.db-wal has steps that are not in run.db yet; "
        "copy the run to a folder that can be written"
    )
    assert resumed == torn.replace("torn", "job").replace(", and run.db-wal has steps that are not in run.db yet", "")
    assert (tmp_path / "out" / "model.safetensors").exists()


# A replay that differs


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        ("UPDATE metrics SET value = value + 1 WHERE step = 3 AND name = 'kl'", "metric kl was "),
        ("UPDATE completions SET text = 'other' WHERE step = 3 AND group_index = 1 AND sample_index = 2",
         "completion 1/2: text was 'other', is "),
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
