"""The record is written behind the loop: in order, one step behind at most, and nothing that goes wrong is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

import grpo
import grpo.training.loop as train_module
from grpo.cli.main import main
from grpo.errors import DiskFullError, GrpoError
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.store import Run
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.training.recorder import Recorder
from helpers.runs import small
from helpers.trainer import command, contents

PATIENCE = 60.0
"""Seconds after which an event that never comes fails a test; no test takes them."""


def recording(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """`before` is called in the recorder's thread with each step that is about to be recorded."""
    real = Run.record

    def record(self: Run, step: int, *more: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        before(step)
        real(self, step, *more)

    monkeypatch.setattr(Run, "record", record)


def test_a_slow_record_does_not_hold_up_the_next_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = [threading.Event() for _ in range(4)]
    real = Engine.finished_groups

    def finished_groups(self: Engine, problems: Any, group_size: int, settings: Sampling) -> Any:
        if settings.purpose == "train":
            sampling[settings.step].set()
        return real(self, problems, group_size, settings)

    def until_the_next_step_samples(step: int) -> None:
        assert step == 2 or sampling[step + 1].wait(PATIENCE), "the loop waits for the record"

    monkeypatch.setattr(Engine, "finished_groups", finished_groups)
    recording(monkeypatch, until_the_next_step_samples)
    run = grpo.train(small(tmp_path))
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]


def test_at_most_one_step_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a step is updated, all but the one before it are in the record."""
    real, seen = train_module.update, []

    def update(*arguments: Any) -> Any:
        with Run.open(tmp_path, "job", readonly=True) as run:
            seen.append((arguments[4], run.last_step()))
        return real(*arguments)

    monkeypatch.setattr(train_module, "update", update)
    grpo.train(small(tmp_path, run="job", steps=5)).close()
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
    for step, recorded in seen:
        assert (-1 if recorded is None else recorded) in (step - 2, step - 1)


def test_a_checkpoint_and_an_evaluation_wait_for_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a step is written only once somebody waits for it."""
    events: list[tuple[str, int]] = []
    asked = threading.Semaphore(0)
    real_wait, real_save, real_eval = Recorder.wait, Checkpoints.save, Run.record_eval

    def wait(self: Recorder) -> None:
        if self._writing is not None:
            asked.release()
        real_wait(self)

    def save(self: Checkpoints, step: int, *more: Any) -> None:
        events.append(("checkpoint", step))
        real_save(self, step, *more)

    def record_eval(self: Run, step: int, *more: Any) -> None:
        events.append(("evaluation", step))
        real_eval(self, step, *more)

    class Told(Callback):
        def on_step(self, step: int, *_: object) -> None:
            events.append(("record", step))

    def once_asked(step: int) -> None:
        assert asked.acquire(timeout=PATIENCE)

    monkeypatch.setattr(Recorder, "wait", wait)
    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(Run, "record_eval", record_eval)
    recording(monkeypatch, once_asked)
    grpo.train(small(tmp_path, steps=4, checkpoint_every=2), callbacks=[Told()]).close()
    assert [event for event in events if event[0] == "record"] == [("record", step) for step in range(4)]
    first = {event: events.index(event) for event in events}
    assert first["record", 1] < first["checkpoint", 2] < first["record", 2]
    assert first["record", 3] < first["evaluation", 4]
    assert first["record", 3] < first["checkpoint", 4]


def test_whoever_waits_for_the_record_hurries_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head start, here without end, is for a loop that has something else to do."""
    pauses: list[bool] = []

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(super().wait(timeout))
            return pauses[-1]

    monkeypatch.setattr("grpo.training.recorder.WRITE_DELAY", PATIENCE)
    monkeypatch.setattr(Recorder, "hand_over", hurried_by(Hurry, Recorder.hand_over))
    grpo.train(small(tmp_path)).close()
    assert pauses == [True] * 3, "one before each step"


def hurried_by(event: type[threading.Event], real: Callable[..., None]) -> Callable[..., None]:
    def hand_over(self: Recorder, *arguments: Any) -> None:
        if type(self._hurry) is not event:
            self._hurry = event()
        real(self, *arguments)

    return hand_over


def test_what_goes_wrong_in_the_record_ends_the_run_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise GrpoError("field run: the record is gone; look for it")

    recording(monkeypatch, fail)
    assert main(command(tmp_path, "job", "--checkpoint-every", "0", "--evaluation.every", "0")) == 2
    assert capsys.readouterr().err == "grpo: field run: the record is gone; look for it\n"
    with Run.open(tmp_path, "job", readonly=True) as run:
        assert (run.last_step(), run.summary()["status"]) == (1, "failed")


@pytest.mark.parametrize("record_fails", [False, True])
def test_where_the_loop_fails_its_error_wins_and_what_it_handed_over_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record_fails: bool
) -> None:
    failing = threading.Event()
    real = train_module.update

    def update(*arguments: Any) -> Any:
        if arguments[4] == 2:
            failing.set()
            raise RuntimeError("a fault in the loop")
        return real(*arguments)

    def until_it_fails(step: int) -> None:
        if step == 1:
            assert failing.wait(PATIENCE)
            if record_fails:
                raise DiskFullError("job/run.db: the disk is full")

    monkeypatch.setattr(train_module, "update", update)
    recording(monkeypatch, until_it_fails)
    with pytest.raises(RuntimeError, match="a fault in the loop"):
        grpo.train(small(tmp_path, run="job"))
    with Run.open(tmp_path, "job", readonly=True) as run:
        assert (run.last_step(), run.summary()["status"]) == (0 if record_fails else 1, "failed")
    assert capsys.readouterr().err == ("grpo: job/run.db: the disk is full\n" if record_fails else "")


def test_where_the_loop_fails_nobody_waits_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, real = threading.Event(), train_module.update

    def update(*arguments: Any) -> Any:
        if arguments[4] == 1:
            assert full.wait(PATIENCE)
            raise RuntimeError("a fault in the loop")
        return real(*arguments)

    def is_full(step: int) -> None:
        full.set()
        raise DiskFullError("job/run.db: the disk is full")

    monkeypatch.setattr(train_module, "update", update)
    monkeypatch.setattr("grpo.training.recorder.RETRY_SECONDS", 10 * PATIENCE)
    recording(monkeypatch, is_full)
    with pytest.raises(RuntimeError, match="a fault in the loop"):
        grpo.train(small(tmp_path, run="job", checkpoints=grpo.config.Checkpoints(disk_full="wait")))
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "grpo: job/run.db: the disk is full"


def test_nobody_comes_between_a_step_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the loop is on its way out, and again: the step under way is written whole."""
    pressed, real, waiting = [], train_module.update, futures.wait

    def update(*arguments: Any) -> Any:
        if arguments[4] == 2:
            monkeypatch.setattr(futures, "wait", press)
            raise KeyboardInterrupt
        return real(*arguments)

    def press(*some: Any) -> Any:
        if len(pressed) < 3:
            pressed.append("^C")
            raise KeyboardInterrupt
        on_its_way_out.set()
        return waiting(*some)

    def slow(step: int) -> None:
        if step == 1:
            assert on_its_way_out.wait(PATIENCE)

    on_its_way_out = threading.Event()
    monkeypatch.setattr(train_module, "update", update)
    recording(monkeypatch, slow)
    with pytest.raises(KeyboardInterrupt):
        grpo.train(small(tmp_path, run="job"))
    assert len(pressed) == 3
    with Run.open(tmp_path, "job", readonly=True) as run:
        assert (run.last_step(), run.summary()["status"]) == (1, "stopped")


def test_waiting_for_space_for_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[int] = []

    def full_twice(step: int) -> None:
        tries.append(step)
        if tries.count(1) in (1, 2) and step == 1:
            raise DiskFullError("job/run.db: the disk is full")

    monkeypatch.setattr("grpo.training.recorder.RETRY_SECONDS", 0.0)
    recording(monkeypatch, full_twice)
    assert main(command(tmp_path, "job", "--checkpoints.disk_full", "wait")) == 0
    assert tries == [0, 1, 1, 1, 2, 3, 4, 5]
    assert capsys.readouterr().err == "grpo: job/run.db: the disk is full; retrying every 0 s\n" * 2
    with Run.open(tmp_path, "job", readonly=True) as run:
        assert [row["step"] for row in run.metrics()] == list(range(6))


@pytest.mark.parametrize("more", [(), ("--algorithm=ppo", "--optimizer.minibatches=2"), ("--algorithm=dapo",)], ids=str)
def test_the_record_is_that_of_a_loop_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    assert main(command(tmp_path, "behind", *more)) == 0
    real = Recorder.hand_over

    def hand_over(self: Recorder, *arguments: Any) -> None:
        real(self, *arguments)
        self.wait()

    monkeypatch.setattr(Recorder, "hand_over", hand_over)
    assert main(command(tmp_path, "waiting", *more)) == 0
    assert contents(tmp_path / "behind") == contents(tmp_path / "waiting")


def test_the_time_of_a_record_is_what_the_loop_waited_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for before the first step; the wait for a step is told with the next."""
    monkeypatch.setattr(Recorder, "wait", lambda self, real=Recorder.wait: (real(self), setattr(self, "waited", 7.0)))
    run = grpo.train(small(tmp_path))
    assert [span["seconds"] for span in run.spans() if span["name"] == "record"] == [7.0, 7.0, 7.0]
    monkeypatch.undo()
    fresh = grpo.train(small(tmp_path))
    waited = [span["seconds"] for span in fresh.spans() if span["name"] == "record"]
    assert waited[0] == 0.0
    assert all(seconds >= 0 for seconds in waited)
    for step in range(3):
        spans = [span for span in fresh.spans() if span["step"] == step]
        assert [span["name"] for span in spans][-1] == "record"
