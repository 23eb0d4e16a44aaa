"""A run that is killed, stopped or met by a second trainer goes on to the same numbers.

A quick form is part of `make test`; `make faults` (GRPO_FAULTS=all) runs every case.
"""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.main import main
from grpo.config.schema import parse_train
from grpo.errors import GrpoError
from grpo.kill_points import POINTS, ROUND
from grpo.model.files import write_model
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.lock import RunLock
from grpo.record.store import Run
from grpo.tasks import TASKS
from helpers.faults import ALL, VARIANTS, Whole, assert_resumed, findings, last_step, status, tree
from helpers.trainer import Orders, Paused, Trainer, assert_same, command

# Killed


def assert_little_is_lost(run: Path) -> None:
    """Of a run that was killed: while one checkpoint is written, the one before it is there and whole."""
    if not run.exists():
        return
    last = last_step(run)
    taken = 0 if last is None else last + 1
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is None or checkpoint.damage() == ""
    assert (checkpoint.step if checkpoint else 0) >= 2 * (taken // 2) - 2


ROUNDS = 21
"""Of episodes, up to the middle of the fourth step."""
OFTEN = {"update": 4, "record": 4, "checkpoint": 2}
"""How many times to pass the points of each kind, so that there is a checkpoint to go on from."""
OCCURRENCES = [
    (point, count)
    for point in POINTS
    for count in ((1, 2, 3) if ALL else (1,) if point == "checkpoint.pruning" else (OFTEN[point.partition(".")[0]],))
]


@pytest.mark.parametrize("variant", VARIANTS if ALL else list(VARIANTS)[:1])
@pytest.mark.parametrize(("point", "count"), OCCURRENCES)
def test_killed_at_a_point(tmp_path: Path, whole: Whole, point: str, count: int, variant: str) -> None:
    argv = command(tmp_path, "job", *VARIANTS[variant])
    code = Trainer(argv, tmp_path, Orders(kill_at=point, count=count)).ended()
    # Removing a checkpoint is the one thing that may happen only twice.
    assert code == -signal.SIGKILL or (code, point, count) == (0, "checkpoint.pruning", 3)
    assert_little_is_lost(tmp_path / "job")
    if point.startswith("checkpoint") and count > 1:
        assert Checkpoints(tmp_path / "job").newest() is not None, (
            "the one before goes only after the next has its name"
        )
    assert main(argv) == 0
    assert_resumed(tmp_path / "job", whole(*VARIANTS[variant]))


FAMILY = {
    "critic, warmed up, and a reference refreshed after 3 steps": (
        "--algorithm=ppo",
        "--critic.warmup-steps=1",
        "--loss.refresh=3",
    ),
    "critic on the shared network": ("--algorithm=ppo", "--critic.model=shared", "--critic.warmup-steps=1"),
    "replaced groups": ("--algorithm=dapo", "--group-size=2", "--loss.refresh=3", "--loss.beta=0.1"),
}
"""What else a run goes on from: checkpoints are after 2, 4 and 6 steps."""


@pytest.mark.parametrize("variant", FAMILY)
@pytest.mark.parametrize(
    "place", ["update.stepped:3", "record.committed:6", *(["checkpoint.renamed:2"] if ALL else [])]
)
def test_killed_with_more_than_a_policy(tmp_path: Path, whole: Whole, variant: str, place: str) -> None:
    point, _, count = place.partition(":")
    argv = command(tmp_path, "job", *FAMILY[variant])
    assert Trainer(argv, tmp_path, Orders(kill_at=point, count=int(count))).ended() == -signal.SIGKILL
    again = Trainer(argv, tmp_path)
    assert again.ended() == 0, again.said()
    assert_resumed(tmp_path / "job", whole(*FAMILY[variant]))


def test_killed_in_a_round_of_episodes(tmp_path: Path, whole: Whole) -> None:
    """In the fourth step of a run whose task answers in worker processes; the workers end with it."""
    episodes = ("--task", str(Path(__file__).parents[2] / "helpers/asks_again.py"), "--max-new-tokens=32")
    argv = command(tmp_path, "job", *episodes)
    trainer = Trainer(argv, tmp_path, Orders(kill_at=ROUND, count=ROUNDS))
    assert trainer.ended() == -signal.SIGKILL, trainer.said()
    assert last_step(tmp_path / "job") in (2, 3)
    assert main(argv) == 0
    assert_resumed(tmp_path / "job", whole(*episodes))
    with Run.open(tmp_path, "job", readonly=True) as run:
        assert {row["text"][-1:] for row in run.turns(3) if row["who"] != "model"} == {"+"}


INSTANTS = [random.Random(f"instants/{number}").uniform(0.02, 0.98) for number in range(50 if ALL else 4)]


@pytest.mark.parametrize("variant", VARIANTS if ALL else list(VARIANTS)[1:])
@pytest.mark.parametrize("instant", INSTANTS, ids="{:.3f}".format)
def test_killed_at_an_instant(tmp_path: Path, whole: Whole, instant: float, variant: str) -> None:
    """`instant` is a share of the time an uninterrupted run takes."""
    argv = command(tmp_path, "job", *VARIANTS[variant])
    trainer = Trainer(argv, tmp_path)
    time.sleep(instant * whole.seconds(*VARIANTS[variant]))
    trainer.send(signal.SIGKILL)
    code = trainer.ended()
    assert code == -signal.SIGKILL or (code == 0 and status(tmp_path / "job") == "finished")
    assert_little_is_lost(tmp_path / "job")
    assert main(argv) == 0
    assert_resumed(tmp_path / "job", whole(*VARIANTS[variant]))


@pytest.mark.parametrize("seed", range(5 if ALL else 1))
def test_killed_again_and_again(tmp_path: Path, whole: Whole, seed: int) -> None:
    rng = random.Random(f"again/{seed}")
    kills = 0
    for _ in range(5):
        # At a point, not after some seconds: how long a run takes depends on what else the machine does.
        place = rng.choice([point for point in POINTS if point.startswith(("update", "record"))])
        trainer = Trainer(command(tmp_path), tmp_path, Orders(kill_at=place, count=rng.randint(1, 2)))
        kills += trainer.ended() == -signal.SIGKILL
        assert_little_is_lost(tmp_path / "job")
    assert kills >= 2
    last = Trainer(command(tmp_path), tmp_path)
    assert last.ended() == 0, last.said()
    assert_resumed(tmp_path / "job", whole())


@pytest.mark.skipif(not ALL, reason="starts a process with torch; part of make faults")
def test_killed_in_a_process_started_by_its_environment(tmp_path: Path, whole: Whole) -> None:
    """GRPO_KILL_AT, as a person would set it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GRPO_KILL_AT": "update.stepped:3"}
    killed = subprocess.run([sys.executable, "-m", "grpo", *command(tmp_path)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert last_step(tmp_path / "job") == 1
    assert main(command(tmp_path)) == 0
    assert_resumed(tmp_path / "job", whole())


def test_killed_writers_of_the_record_lose_nothing(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "helpers/kill_the_store.py"
    kills = "500" if ALL else "25"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), kills, "1"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    said, _, steps = done.stdout.partition(", ")
    assert said == f"{kills} kills"
    assert int(steps.split()[0]) >= int(kills) // 2, "killed too early to have written anything"


# Stopped


@pytest.fixture
def paused_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trainer that paused is called by when it goes on, here without a pause."""
    monkeypatch.setitem(TASKS, "paused", lambda _: Paused(Orders(), Path()))


PAUSED = ("--task", "paused")


@pytest.mark.usefixtures("paused_task")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(
    tmp_path: Path, whole: Whole, number: signal.Signals
) -> None:
    trainer = Trainer(command(tmp_path, "job", *PAUSED), tmp_path, Orders(pause_at=2, seconds=0.3))
    trainer.wait_until("")
    trainer.send(number)
    assert trainer.ended() == 130
    assert trainer.said().splitlines()[0] == (
        "grpo: stopping after this step with a checkpoint; a second signal stops at once"
    )
    run = tmp_path / "job"
    assert (status(run), last_step(run)) == ("stopped", 2)
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (3, "")
    assert main(command(tmp_path, "job", *PAUSED)) == 0
    assert_same(run, whole())
    assert findings(run) == []


@pytest.mark.usefixtures("paused_task")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_run_at_once(tmp_path: Path, whole: Whole, number: signal.Signals) -> None:
    trainer = Trainer(command(tmp_path, "job", *PAUSED), tmp_path, Orders(pause_at=5, seconds=600))
    trainer.wait_until("")
    trainer.send(number)
    trainer.wait_until("stopping after this step")
    asked = time.monotonic()
    trainer.send(number)
    assert trainer.ended(timeout=20) == 130
    assert time.monotonic() - asked < 5
    run = tmp_path / "job"
    assert (status(run), last_step(run)) == ("stopped", 4)
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (4, "")
    assert main(command(tmp_path, "job", *PAUSED)) == 0
    assert_same(run, whole())
    assert findings(run) == []


@pytest.mark.usefixtures("paused_task")
def test_a_closed_terminal_ends_the_run_after_its_step(tmp_path: Path, whole: Whole) -> None:
    """It sends SIGHUP more than once, and whatever is printed there afterwards fails."""
    ours, theirs = pty.openpty()
    orders = Orders(pause_at=2, seconds=0.3, terminal=os.ttyname(theirs))
    argv = [word for word in command(tmp_path, "job", *PAUSED) if word != "--quiet"]
    trainer = Trainer(argv, tmp_path, orders)
    trainer.wait_until("", reading=ours)
    os.close(theirs)
    os.close(ours)
    trainer.send(signal.SIGHUP)
    assert trainer.ended() == 130
    run = tmp_path / "job"
    assert (status(run), last_step(run)) == ("stopped", 2)
    assert main(command(tmp_path, "job", *PAUSED)) == 0
    assert_same(run, whole())


@pytest.mark.usefixtures("paused_task")
def test_under_nohup_a_run_goes_on(tmp_path: Path, whole: Whole) -> None:
    orders = Orders(pause_at=2, seconds=0.3, nohup=True)
    trainer = Trainer(command(tmp_path, "job", *PAUSED), tmp_path, orders)
    trainer.wait_until("")
    trainer.send(signal.SIGHUP)
    assert trainer.ended() == 0
    assert "stopping" not in trainer.said()
    assert_resumed(tmp_path / "job", whole())


def test_what_is_being_written_is_finished_before_the_run_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a run ends: another trainer must not meet a writer of the first."""

    class Crash(Callback):
        def on_step(self, step: int, *_: object) -> None:
            if step == 2:
                raise RuntimeError("a fault")

    def slowly(*arguments: Any) -> None:
        time.sleep(0.5)
        write_model(*arguments)

    monkeypatch.setattr("grpo.model.files.write_model", slowly)
    with pytest.raises(GrpoError, match="callback Crash: on_step raised RuntimeError: a fault"):
        grpo.train(parse_train(command(tmp_path)[1:]), callbacks=[Crash()])
    assert os.listdir(tmp_path / "job" / "checkpoints") == ["step-000002"]
    RunLock(tmp_path / "job").close()


# Two trainers


def settled(path: Path) -> dict[str, bytes]:
    """The folder, once its checkpoint is written and older ones are gone."""
    before: dict[str, bytes] = {}
    while True:
        with suppress(FileNotFoundError):
            now = tree(path)
            if now == before:
                return now
            before = now
        time.sleep(0.5)


@pytest.mark.usefixtures("paused_task")
def test_a_second_trainer_is_refused_with_the_number_of_the_first(
    tmp_path: Path, whole: Whole, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Trainer(command(tmp_path, "job", *PAUSED), tmp_path, Orders(pause_at=3, seconds=600))
    first.wait_until("")
    before = settled(tmp_path / "job")
    assert main(command(tmp_path, "job", *PAUSED)) == 2
    assert capsys.readouterr().err == (
        f"grpo: field run: job is being trained by process {first.pid}; wait for it, or choose --run OTHER\n"
    )
    assert tree(tmp_path / "job") == before
    first.send(signal.SIGKILL)
    assert first.ended() == -signal.SIGKILL
    assert main(command(tmp_path, "job", *PAUSED)) == 0
    assert_same(tmp_path / "job", whole())
    RunLock(tmp_path / "job").close()  # free, now that the second has ended


def test_a_refused_resume_leaves_the_run_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path)) == 0
    assert main(command(tmp_path, "job", "--lr", "0.5")) == 2
    assert "lr was 0.001, is 0.5" in capsys.readouterr().err
    RunLock(tmp_path / "job").close()
