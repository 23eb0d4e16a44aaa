"""Callbacks: which events arrive, who may stop a run, and what a callback that raises costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.config import Config, Evaluation, SftConfig, System
from grpo.errors import GrpoError
from grpo.record.checkpoints import Checkpoint
from grpo.record.store import Run
from grpo.types import Group


def small(folder: Path, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "model": "nano",
        "run": "small",
        "steps": 4,
        "prompts_per_step": 2,
        "group_size": 4,
        "max_new_tokens": 12,
        "checkpoint_every": 2,
        "evaluation": Evaluation(every=2, problems=4, probes=0),
        "system": System(runs=str(folder)),
    }
    return Config(**(settings | changes))


@pytest.mark.parametrize(("callbacks", "got"), [(5, "5"), (grpo.Callback, "<class"), ([5], "5 is not an instance")])
def test_what_is_no_callback_is_refused(callbacks: Any, got: str, tmp_path: Path) -> None:
    with pytest.raises(GrpoError, match=f"field callbacks: .*{got}"):
        grpo.train(small(tmp_path), callbacks=callbacks)


class Journal(grpo.Callback):
    """Writes every event down, and checks that the record already has it."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_start(self, run: Run, config: Config | SftConfig, first_step: int) -> None:
        self.run = run
        self.events.append(("start", first_step))

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        assert self.run.last_step() == step
        self.events.append(("step", step, len(groups)))

    def on_evaluation_start(self, step: int, problems: int) -> None:
        self.events.append(("evaluating", step, problems))

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.run.evals()[-1]["accuracy"] == metrics["accuracy"]
        self.events.append(("evaluated", step))

    def on_checkpoint(self, step: int, path: Path) -> None:
        assert Checkpoint(step, path).damage() == ""
        self.events.append(("checkpoint", step))

    def on_end(self, run: Run) -> None:
        self.events.append(("end", run.status))


def test_events_arrive_in_order_once_recorded(tmp_path: Path) -> None:
    journal = Journal()
    grpo.train(small(tmp_path), callbacks=[journal]).close()
    # Checkpoints are written in the background and reported as soon as the loop sees them complete.
    checkpoints = [event for event in journal.events if event[0] == "checkpoint"]
    assert checkpoints[-1] == ("checkpoint", 4)
    assert {step for _, step in checkpoints} >= {2, 4}
    assert [event for event in journal.events if event[0] != "checkpoint"] == [
        ("start", 0),
        *[("evaluating", 0, 4), ("evaluated", 0), ("step", 0, 2), ("step", 1, 2)],
        *[("evaluating", 2, 4), ("evaluated", 2), ("step", 2, 2), ("step", 3, 2)],
        *[("evaluating", 4, 4), ("evaluated", 4), ("end", "finished")],
    ]


def test_supervised_fine_tuning_has_the_same_events(tmp_path: Path) -> None:
    journal = Journal()
    config = SftConfig(model="nano", task="arithmetic", steps=2, batch_size=4, system=System(runs=str(tmp_path)))
    grpo.sft(config, callbacks=[journal]).close()
    assert journal.events == [("start", 0), ("step", 0, 0), ("step", 1, 0), ("checkpoint", 2), ("end", "finished")]


class StopAfter(grpo.Callback):
    def __init__(self, event: str, step: int):
        self.event, self.step = event, step

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        if (self.event, self.step) == ("step", step):
            self.request_stop()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        if (self.event, self.step) == ("evaluation", step):
            self.request_stop()


@pytest.mark.parametrize("event", ["step", "evaluation"])
def test_a_callback_stops_the_run_at_most_a_step_later_and_it_resumes(tmp_path: Path, event: str) -> None:
    with grpo.train(small(tmp_path, steps=6), callbacks=[StopAfter(event, 2)]) as run:
        last = run.last_step()
        assert run.status == "stopped"
    assert last in (2, 3)
    assert (tmp_path / "small" / "checkpoints" / f"step-{last + 1:06d}").is_dir()
    with grpo.train(small(tmp_path, steps=6, resume=True)) as run:
        assert (run.status, run.last_step()) == ("finished", 5)


def test_a_callback_that_stopped_one_run_does_not_stop_the_next(tmp_path: Path) -> None:
    stop = StopAfter("step", 0)
    with grpo.train(small(tmp_path, steps=4), callbacks=[stop]) as run:
        assert run.status == "stopped"
    stop.step = 9
    with grpo.train(small(tmp_path, steps=4, resume=True), callbacks=[stop]) as run:
        assert (run.status, run.last_step()) == ("finished", 3)


@pytest.mark.parametrize(
    ("event", "recorded"), [("on_start", None), ("on_step", 0), ("on_evaluation", None), ("on_checkpoint", 1)]
)
def test_a_callback_that_raises_stops_the_run_with_everything_recorded(
    tmp_path: Path, event: str, recorded: int | None
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a sum went wrong")

    early, journal = Journal(), Journal()
    broken = type("Broken", (grpo.Callback,), {event: fail})()
    message = f"callback Broken: {event} raised ZeroDivisionError: a sum went wrong; fix it, or leave the callback out"
    with pytest.raises(GrpoError) as caught:
        grpo.train(small(tmp_path), callbacks=[early, broken, journal])
    assert str(caught.value) == message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert early.events[-1] == ("end", "failed")
    assert (journal.events == []) == (event == "on_start"), "on_end needs an on_start"
    with Run.open(tmp_path, "small", readonly=True) as run:
        assert run.status == "failed"
        last = run.last_step()
        assert last == recorded if recorded is None else last is not None and last >= recorded
    with grpo.train(small(tmp_path, resume=True)) as run:
        assert run.status == "finished"


@pytest.mark.parametrize("kind", [ValueError, GrpoError])
def test_a_failure_at_the_end_is_reported_and_hides_no_other_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[Exception]
) -> None:
    class Broken(grpo.Callback):
        def on_end(self, run: Run) -> None:
            raise kind("no picture")

    journal = Journal()

    class Interrupt(grpo.Callback):
        def on_step(self, *_: Any) -> None:
            raise OSError("gone")

    with grpo.train(small(tmp_path, steps=1), callbacks=[Broken()]) as run:
        assert run.status == "finished"
    assert (
        capsys.readouterr().err.splitlines()[-1] == f"grpo: callback Broken: on_end raised {kind.__name__}: no picture"
    )
    with pytest.raises(GrpoError, match="callback Interrupt: on_step raised OSError: gone"):
        grpo.train(small(tmp_path, run="other"), callbacks=[Broken(), journal, Interrupt()])
    assert journal.events[-1] == ("end", "failed")


@pytest.mark.parametrize("wrong", [Journal, print, None])
def test_what_is_not_a_callback_is_refused_before_anything_starts(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(GrpoError, match=r"field callbacks: .* is not an instance of a grpo\.Callback subclass; "):
        grpo.train(small(tmp_path), callbacks=[wrong])
    assert not (tmp_path / "small").exists()
