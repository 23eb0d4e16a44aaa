"""Loggers read back by their own readers: the record's numbers, each once, also after a kill."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))  # read when trackio is imported

import grpo
from grpo.cli.main import main
from grpo.config import Config, Evaluation, System
from grpo.errors import GrpoError
from grpo.record.events import Callback, Terminal
from grpo.record.loggers import LOGGERS, recorded_rows, with_loggers
from grpo.record.store import Run
from grpo.types import Group


def small(folder: Path, log: str, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "model": "nano",
        "run": "logged",
        "steps": 4,
        "prompts_per_step": 2,
        "group_size": 4,
        "max_new_tokens": 24,
        "checkpoint_every": 2,
        "evaluation": Evaluation(every=2, problems=4, probes=0),
        "system": System(runs=str(folder), log=log),
    }
    return Config(**(settings | changes))


class Killed(Callback):
    """Ends the run as a kill would, after step 2 is recorded and logged, with a checkpoint of 2 steps."""

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        if step == 2:
            raise KeyboardInterrupt


def killed_and_resumed(folder: Path, log: str) -> Run:
    with pytest.raises(KeyboardInterrupt):
        grpo.train(small(folder, log), callbacks=[Killed()])
    return grpo.train(small(folder, log, resume=True))


def expected_rows(run: Run) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in recorded_rows(run):
        for name, value in row.values.items():
            found.setdefault(name, []).append((row.key[0], value))
    return found


def assert_logged(found: Mapping[str, Sequence[tuple[int, float]]], run: Run) -> None:
    """Every number of the record under its own name and step, once. Times of steps made again are the first ones."""
    expected = expected_rows(run)
    assert set(found) == set(expected)
    assert [step for step, _ in expected["loss"]] == [0, 1, 2, 3]
    assert [step for step, _ in expected["eval/accuracy"]] == [0, 2, 4]
    for name, rows in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in rows], name
        if not name.startswith("seconds/") and name not in ("tokens_per_second", "peak_memory"):
            assert [value for _, value in found[name]] == pytest.approx([value for _, value in rows], rel=1e-6), name


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with killed_and_resumed(tmp_path, "tensorboard") as run:
        reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        tags = reader.Tags()
        assert_logged({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags["scalars"]}, run)
        [text, *_] = reader.Tensors(tags["tensors"][0])
        assert 'model = "nano"' in text.tensor_proto.string_val[0].decode()


def test_a_logger_that_joins_later_gets_all_of_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    grpo.train(small(tmp_path, "", steps=2)).close()
    with grpo.train(small(tmp_path, "tensorboard", resume=True)) as run:
        reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        assert_logged({t: [(e.step, e.value) for e in reader.Scalars(t)] for t in reader.Tags()["scalars"]}, run)


def test_trackio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    with killed_and_resumed(tmp_path, "trackio") as run:
        assert [finding["text"] for finding in run.findings() if finding["kind"] == "logger"] == []
        name = f"logged-{json.loads((run.path / 'loggers.json').read_text())['id']}"
        found: dict[str, list[tuple[int, float]]] = {}
        for row in SQLiteStorage.get_logs("grpo", name):
            for metric in set(row) - {"step", "timestamp"}:
                found.setdefault(metric, []).append((row["step"], row[metric]))
        assert_logged(found, run)
    assert "rackio" not in capsys.readouterr().out


def wandb_records(file: Path) -> list[Any]:
    """Records of a .wandb file: 7 bytes, then blocks of 32 KiB with crc (4), length (2), kind (1), content."""
    from wandb.proto import wandb_internal_pb2

    content, place, whole, records = file.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        if place % 32768 > 32768 - 7:  # no room for another header
            place += -place % 32768
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return records


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """Rows of a .wandb file, once W&B's own process has written its last record, which may be after `finish`."""
    deadline = time.monotonic() + 60
    while not (records := wandb_records(file)) or not records[-1].HasField("exit"):
        assert time.monotonic() < deadline, f"{file} has no end"
        time.sleep(0.05)
    items = ([(i.key or "/".join(i.nested_key), json.loads(i.value_json)) for i in r.history.item] for r in records)
    return [row for row in map(dict, items) if "step" in row]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with killed_and_resumed(tmp_path, "wandb") as run:
        assert [finding["text"] for finding in run.findings() if finding["kind"] == "logger"] == []
        files = sorted(run.path.rglob("*.wandb"))
        assert len(files) == 2
        found: dict[str, list[tuple[int, float]]] = {}
        for row in (row for file in files for row in wandb_history(file)):
            for name in [name for name in row if name != "step" and not name.startswith("_")]:
                found.setdefault(name, []).append((row["step"], row[name]))
        assert_logged(found, run)


class FakeWandb(types.ModuleType):
    """Its documented functions, keeping what they are given."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.codes: list[int] = []
        self.summary: dict[str, Any] = {}

    def init(self, **options: Any) -> FakeWandb:
        self.calls.append(options)
        return self

    def Settings(self, **options: Any) -> dict[str, Any]:  # noqa: N802
        return options

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, row: dict[str, Any]) -> None:
        self.history.append(row)

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)


def test_wandb_is_told_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr("grpo.record.loggers.find_spec", lambda name: types.SimpleNamespace(origin=name))
    with killed_and_resumed(tmp_path, "wandb") as run:
        found: dict[str, list[tuple[int, float]]] = {}
        for row in fake.history:
            for name in set(row) - {"step"}:
                found.setdefault(name, []).append((row["step"], row[name]))
        assert_logged(found, run)
        first, second = fake.calls
        assert first["id"] == second["id"] == json.loads((run.path / "loggers.json").read_text())["id"]
        assert (first["resume"], first["name"], first["project"]) == ("allow", "logged", "grpo")
        assert first["config"]["model"] == "nano"
        assert first["config"]["loss"]["beta"] == 0.04
        assert fake.codes == [0, 0]


def test_what_a_logger_lost_it_gets_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was killed at step 2, the rows of steps 1 and 2 never arrived; the record has them."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr("grpo.record.loggers.find_spec", lambda name: types.SimpleNamespace(origin=name))
    with pytest.raises(KeyboardInterrupt):
        grpo.train(small(tmp_path, "wandb"), callbacks=[Killed()])
    fake.history, fake.summary = [row for row in fake.history if row["step"] == 0], {"step": 0}
    grpo.train(small(tmp_path, "wandb", resume=True)).close()
    assert [row["step"] for row in fake.history if "loss" in row] == [0, 1, 2, 3]
    assert [row["step"] for row in fake.history if "eval/accuracy" in row] == [0, 2, 4]


def test_a_logger_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unplugged:
        held = None

        def __init__(self, *_: Any) -> None: ...

        def write(self, step: int, values: Mapping[str, float]) -> None:
            if step >= 1:
                raise ConnectionError("no route to host")

        def close(self, failed: bool) -> None:
            raise AssertionError("it was left behind")

    class Unstartable:
        def __init__(self, *_: Any) -> None:
            raise RuntimeError("who are you?")

    monkeypatch.setitem(LOGGERS, "wandb", Unplugged)
    monkeypatch.setitem(LOGGERS, "trackio", Unstartable)
    monkeypatch.setattr("grpo.record.loggers.find_spec", lambda name: types.SimpleNamespace(origin=name))
    with grpo.train(small(tmp_path, "wandb,trackio")) as run:
        assert run.summary()["status"] == "finished"
        said = [finding["text"] for finding in run.findings() if finding["kind"] == "logger"]
    dropped = "failed and is dropped for the rest of the run"
    unplugged = f"field system.log: wandb {dropped}: ConnectionError: no route to host"
    assert said == [
        f"field system.log: trackio {dropped}: RuntimeError: who are you?",
        unplugged,
    ]
    assert capsys.readouterr().err.count(unplugged) == 1


def test_a_logger_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Hanging:
        held = None

        def __init__(self, *_: Any) -> None: ...

        def write(self, step: int, values: Mapping[str, float]) -> None:
            released.wait()

        def close(self, failed: bool) -> None: ...

    monkeypatch.setitem(LOGGERS, "wandb", Hanging)
    monkeypatch.setattr("grpo.record.loggers.find_spec", lambda name: types.SimpleNamespace(origin=name))
    monkeypatch.setattr("grpo.record.loggers.SECONDS_TO_CLOSE", 0.01)
    with grpo.train(small(tmp_path, "wandb", steps=2)) as run:
        released.set()
        assert [row["step"] for row in run.metrics()] == [0, 1]
        [said] = [finding["text"] for finding in run.findings() if finding["kind"] == "logger"]
    assert "did not finish within" in said


def test_fine_tuning_is_logged_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4)
    where = ["--system.runs", str(tmp_path), "--run", "tuned", "--quiet"]
    assert main(["sft", "nano", str(rows), "--steps", "2", "--batch-size", "2", "--log", "tensorboard", *where]) == 0
    reader = EventAccumulator(str(tmp_path / "tuned" / "tensorboard")).Reload()
    assert [event.step for event in reader.Scalars("sft_loss")] == [0, 1]


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--log", "wandbb"]) == 2
    assert capsys.readouterr().err == (
        'grpo: field system.log (command line): unknown logger "wandbb"; known: wandb, tensorboard, trackio\n'
    )
    # A folder of that name in the working directory is not the package.
    for missing in (None, types.SimpleNamespace(origin=None)):
        monkeypatch.setattr("grpo.record.loggers.find_spec", lambda name, missing=missing: missing)
        with pytest.raises(GrpoError, match=r"field system.log: trackio is not installed: pip install trackio"):
            grpo.train(small(tmp_path, "trackio"))
        assert not (tmp_path / "logged").exists(), "nothing was begun"
    [terminal] = with_loggers([], "").members
    assert type(terminal) is Terminal
