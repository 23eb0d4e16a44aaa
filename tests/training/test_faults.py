"""Never lose a run: killed, stopped, damaged, out of space or changed, it goes on to the same numbers or says why not.

A quick form is part of `make test`; `make faults` (GRPO_FAULTS=all) runs every case.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import grpo
from grpo.cli.main import main
from grpo.config import Config, Optimizer
from grpo.config.parse import leaves
from grpo.config.schema import parse_train
from grpo.errors import DiskFullError, GrpoError
from grpo.kill_points import POINTS
from grpo.model.files import write_model
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.optimizer import make_optimizer, state_tensors, take_step
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.lock import RunLock
from grpo.record.store import Run
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.session import Session
from helpers.trainer import Orders, Trainer, assert_same, command, contents, poisoned

ALL = os.environ.get("GRPO_FAULTS") == "all"
VARIANTS = {"one update": (), "four updates": ("--optimizer.epochs", "2", "--optimizer.minibatches", "2")}


class Whole:
    """Uninterrupted runs, made when first asked for: what they left, and how long they took."""

    def __init__(self, folder: Path):
        self.folder = folder
        assert Trainer(["runs", "--runs", str(folder)], folder).ended() == 0  # now the server has started
        self.made: dict[tuple[str, ...], tuple[dict[str, Any], float]] = {}

    def __call__(self, *more: str) -> dict[str, Any]:
        return self.run(*more)[0]

    def seconds(self, *more: str) -> float:
        return self.run(*more)[1]

    def run(self, *more: str) -> tuple[dict[str, Any], float]:
        if more not in self.made:
            name = f"whole-{len(self.made)}"
            started = time.monotonic()
            trainer = Trainer(command(self.folder, name, *more), self.folder)
            assert trainer.ended() == 0, trainer.said()
            self.made[more] = contents(self.folder / name), time.monotonic() - started
        return self.made[more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def findings(run: Path) -> list[tuple[str, int | None, str]]:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return [(row["kind"], row["step"], row["text"]) for row in record.findings()]


def status(run: Path) -> str:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return record.summary()["status"]


def last_step(run: Path) -> int | None:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return record.last_step()


def assert_resumed(run: Path, expected: dict[str, Any]) -> None:
    """Finished as if nothing had happened; that there was no checkpoint yet is all that may have been noted."""
    assert_same(run, expected)
    assert status(run) == "finished"
    for kind, _, text in findings(run):
        assert (kind, text) == (
            "damaged",
            f"{run.name} has no complete checkpoint: it starts again from the first step",
        )


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which holds the number of the last process, and the index that readers share."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name not in ("lock", "run.db-shm")}


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
    script = Path(__file__).parents[1] / "helpers/kill_the_store.py"
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
    from helpers.trainer import Paused

    monkeypatch.setitem(TASKS, "paused", lambda _: Paused(Orders(), Path()))


PAUSED = ("--task", "paused")


@pytest.mark.usefixtures("paused_task")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(
    tmp_path: Path, whole: Whole, number: signal.Signals
) -> None:
    trainer = Trainer(command(tmp_path, "job", *PAUSED), tmp_path, Orders(pause_at=2, seconds=0.3))
    trainer.wait_until("")
    trainer.send(number)
    assert trainer.ended() == 130
    assert trainer.said().splitlines()[0] == (
        "grpo: stopping after this step, with a checkpoint; once more stops at once"
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


# Numbers that are not finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_update_with_a_gradient_that_is_not_finite_changes_nothing(value: float) -> None:
    policy = load_policy("nano")
    optimizer = make_optimizer(policy, Optimizer(weight_decay=0.1))

    def gradients(last: float) -> None:
        for weight in policy.model.parameters():
            weight.grad = torch.ones_like(weight)
        weight.grad.view(-1)[-1] = last

    gradients(1.0)
    assert take_step(policy, optimizer, lr=0.01, grad_clip=1.0) > 1
    before = [
        tensor.clone()
        for tensor in (*policy.weights().values(), *state_tensors(policy.trainable(), optimizer).values())
    ]
    gradients(value)
    norm = take_step(policy, optimizer, lr=0.01, grad_clip=1.0)
    assert not torch.isfinite(torch.tensor(norm))
    after = [*policy.weights().values(), *state_tensors(policy.trainable(), optimizer).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert policy.version == 1
    assert all(weight.grad is None for weight in policy.model.parameters())
    gradients(1.0)
    take_step(policy, optimizer, lr=0.01, grad_clip=1.0)
    assert policy.version == 2
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "all of it moves again"


EACH = ("--checkpoint-every", "1", "--checkpoints.keep", "9")


def nonfinite(step: int) -> tuple[str, int, str]:
    problems = ", ".join(f"train/{step}/{index}" for index in range(4))
    return "nonfinite", step, f"step {step}: the gradient was not finite, no update taken; problems {problems}"


def test_one_step_that_is_not_finite_is_skipped_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(frozenset([2])))
    assert main(command(tmp_path, "job", *EACH)) == 0
    assert capsys.readouterr().err == f"grpo: {nonfinite(2)[2]}\n"
    run = tmp_path / "job"
    assert findings(run) == [nonfinite(2)]
    with Run.open(tmp_path, "job") as record:
        assert [row["skipped_updates"] for row in record.metrics()] == [0, 0, 1, 0, 0, 0]
        assert [row["updates"] for row in record.metrics()] == [1, 1, 0, 1, 1, 1]
        assert [record.groups(step)[0]["policy_version"] for step in range(6)] == [0, 1, 2, 2, 3, 4]
    checkpoints = Checkpoints(run)
    states = [checkpoint.state for checkpoint in checkpoints._all()]
    assert [state["policy_version"] for state in states] == [1, 2, 2, 3, 4, 5]
    assert [state["nonfinite_steps"] for state in states] == [0, 0, 1, 0, 0, 0]
    files = [tree(checkpoint.path) for checkpoint in checkpoints._all()]
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        assert files[1][name] == files[2][name], "the step left no trace"
        assert len({file[name] for file in files}) == 5, "and all others did"


@pytest.mark.parametrize(
    ("steps", "last"), [({0, 1, 3, 4}, None), ({1, 2, 3}, 3), ({0, 2, 3, 4, 5}, 4), ({3, 4, 5}, 5)]
)
def test_three_in_a_row_stop_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    steps: set[int],
    last: int | None,
) -> None:
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(frozenset(steps)))
    assert main(command(tmp_path, "job", *EACH)) == (0 if last is None else 2)
    run = tmp_path / "job"
    told = sorted(step for step in steps if last is None or step <= last)
    assert findings(run) == [nonfinite(step) for step in told]
    lines = [f"grpo: {nonfinite(step)[2]}" for step in told]
    if last is None:
        assert capsys.readouterr().err.splitlines() == lines
        assert (status(run), last_step(run)) == ("finished", 5)
        return
    assert capsys.readouterr().err.splitlines() == [
        *lines,
        f"grpo: field lr: 3 steps in a row had a gradient that was not finite, the last is step {last}; lower lr "
        "(now 0.001) and start again or resume from an earlier checkpoint",
    ]
    assert (status(run), last_step(run)) == ("failed", last)
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (last, "")
    assert all(weight.isfinite().all() for weight in load_policy(str(checkpoint.model)).model.parameters())


def test_the_count_of_steps_in_a_row_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = frozenset([2, 3, 4])
    orders = Orders(kill_at="record.begun", count=5, nonfinite=steps)
    trainer = Trainer(command(tmp_path, "job", *EACH), tmp_path, orders)
    assert trainer.ended() == -signal.SIGKILL
    assert last_step(tmp_path / "job") == 3
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(steps))
    assert main(command(tmp_path, "job", *EACH)) == 2
    assert "the last is step 4;" in capsys.readouterr().err


def test_a_learning_rate_that_ruins_the_model_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "job", "--lr", "1e6")) == 2
    *warnings, line = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo: field lr: 3 steps in a row had a gradient that was not finite, the last is step ")
    assert "lower lr (now 1e+06)" in line
    assert len(warnings) == 3
    run = tmp_path / "job"
    assert status(run) == "failed"
    assert [kind for kind, _, _ in findings(run)] == ["nonfinite"] * 3
    for checkpoint in Checkpoints(run)._all():
        assert checkpoint.damage() == ""
        assert all(weight.isfinite().all() for weight in load_policy(str(checkpoint.model)).model.parameters())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    session = Session.start(parse_train(command(tmp_path)[1:]), [])
    with session.recorded():
        session.checkpoint(1)
        with torch.no_grad():
            session.policy.model.model.norm.weight[3] = float("inf")
        with pytest.raises(GrpoError, match=r"^weight model\.norm\.weight is not finite after 2 steps"):
            session.checkpoint(2)
    assert os.listdir(tmp_path / "job" / "checkpoints") == ["step-000001"]
    session.run.close()


# Changed inputs


TASK = """
from grpo.tasks.arithmetic import Arithmetic

class Mine(Arithmetic):
    def __init__(self, _):
        super().__init__("easy")
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a task and a run of two steps."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(locate_model("nano"), folder / "model")
    (folder / "task.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        load_mine(patch)
        assert main(MINE) == 0
    return folder


MINE = [*command(Path("runs"), "job", "--model", "./model", "--task", "mine"), "--steps", "2"]


def load_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of task.py in the working directory, as `mine`."""
    spec = importlib.util.spec_from_file_location("mine", Path("task.py").resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mine", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(TASKS, "mine", module.Mine)


@pytest.fixture
def again(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in, with its task loaded."""
    folder = tmp_path / "again"
    shutil.copytree(begun, folder)
    monkeypatch.chdir(folder)
    load_mine(monkeypatch)
    return folder


def change_a_weight(_: pytest.MonkeyPatch) -> None:
    content = bytearray(Path("model/model.safetensors").read_bytes())
    content[-1] ^= 1
    Path("model/model.safetensors").write_bytes(content)


def change_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("task.py").write_text(TASK + "# the same, by another text\n")
    load_mine(monkeypatch)


def change_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Arithmetic.heldout
    monkeypatch.setattr(Arithmetic, "heldout", lambda self: real(self)[1:])


def change_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpo.training.fingerprint

    real = grpo.training.fingerprint.metadata.version
    versions = SimpleNamespace(version=lambda name: "9.9" if name == "torch" else real(name))
    monkeypatch.setattr(grpo.training.fingerprint, "metadata", versions)


def change_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")


CHANGES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str], str]] = {
    "a setting": (lambda _: None, ["--lr", "0.5"], "lr was 0.001, is 0.5"),
    "a nested setting": (lambda _: None, ["--loss.beta", "0.5"], "loss.beta was 0.04, is 0.5"),
    "two settings": (lambda _: None, ["--seed", "2", "--group-size", "5"], "group_size was 4, is 5; seed was 1, is 2"),
    "the machine": (lambda _: None, ["--system.deterministic"], "system.deterministic was False, is True"),
    "the model": (change_a_weight, [], "model was '"),
    "the task's code": (change_the_task, [], "task code was '"),
    "the problems": (change_the_problems, [], "problems was '"),
    "a version": (change_a_version, [], f"torch was '{torch.__version__.partition('+')[0]}"),
    "Python": (change_python, [], f"python was '{sys.version.split()[0]}', is '3.99.0'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_resume_that_would_change_the_run_is_refused_unless_accepted(
    again: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    make, flags, says = CHANGES[change]
    make(monkeypatch)
    before = tree(again / "runs")
    capsys.readouterr()
    argv = [*MINE, "--steps", "3", *flags]
    assert main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo: field resume: job began with other inputs: {says}")
    assert line.endswith("; restore that, start another (--run OTHER), or accept it (--checkpoints.allow-change)")
    differences = line.removeprefix("grpo: field resume: job began with other inputs: ")
    differences = differences.removesuffix(
        "; restore that, start another (--run OTHER), or accept it (--checkpoints.allow-change)"
    )
    assert tree(again / "runs") == before

    assert main([*argv, "--checkpoints.allow-change"]) == 0
    run = again / "runs" / "job"
    assert (status(run), last_step(run)) == ("finished", 2)
    assert [(kind, text) for kind, _, text in findings(run)] == [("changed", text) for text in differences.split("; ")]
    torch.use_deterministic_algorithms(False)


def test_settings_that_leave_the_numbers_alone_are_no_change(again: Path, whole: Whole) -> None:
    (again / "runs").rename(again / "moved")
    flags = "--evaluation.every 2 --evaluation.problems 7 --checkpoint-every 1 --checkpoints.keep 3 --no-quiet"
    argv = [*MINE, *flags.split(), "--system.runs", "moved", "--system.token_groups", "3", "--steps", "6"]
    assert main(argv) == 0
    run = again / "moved" / "job"
    assert findings(run) == []
    found, expected = contents(run), whole()
    for name in ("metrics", "completions", "groups", "files"):
        assert found[name] == expected[name]


def test_more_steps_are_no_change(again: Path, whole: Whole) -> None:
    assert main([*MINE, "--steps", "6"]) == 0
    assert findings(again / "runs" / "job") == []
    found, expected = contents(again / "runs" / "job"), whole()
    for name in ("metrics", "completions", "groups", "token_arrays", "files"):
        assert found[name] == expected[name]


def test_fewer_steps_than_taken_are_refused(again: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(again / "runs")
    assert main([*MINE, "--steps", "1"]) == 2
    assert capsys.readouterr().err == ("grpo: field steps: job has already taken 2 steps; ask for more\n")
    assert tree(again / "runs") == before


def test_a_task_typed_at_a_prompt_can_be_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no file to take a fingerprint of."""
    module = ModuleType("typed")
    monkeypatch.setitem(sys.modules, "typed", module)
    exec(TASK, module.__dict__)
    monkeypatch.setitem(TASKS, "mine", module.Mine)
    for steps in ("1", "2"):
        assert main(command(tmp_path, "job", "--task", "mine", "--steps", steps)) == 0
    assert findings(tmp_path / "job") == []


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
    assert line.endswith("; set aside as damaged-step-000006")
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
        f"set aside as damaged-{name}"
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
        assert "resume the run, which falls back to the checkpoint before" in line
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
def test_a_step_made_again_that_is_not_the_same_is_shouted(
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
    line = next(line for line in capsys.readouterr().err.splitlines() if "made again and" in line)
    assert line.startswith(f"grpo: step 3 was made again and is not the same: {named}")
    assert ("replay", 3, line.removeprefix("grpo: ")) in findings(run)
    assert_same(run, whole())


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
    monkeypatch.setattr("grpo.training.recorder.SECONDS_BETWEEN_TRIES", 0.01)


def test_waiting_for_space_before_a_checkpoint(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, asked = shutil.disk_usage, 0

    def usage(path: Path) -> Any:
        nonlocal asked
        asked += 1
        return SimpleNamespace(free=100) if asked in (3, 4, 5) else real(path)  # first the preflight, then step 2

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr("grpo.training.recorder.SECONDS_BETWEEN_TRIES", 0.01)
    assert main(command(tmp_path, "job", "--checkpoints.disk_full", "wait")) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("the disk is full, step-" in line and "trying again every 0 s" in line for line in lines)
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


# The page about it


def test_the_page_names_what_exists() -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / target).is_file(), target
    known = {name.replace("_", "-") for name in leaves(Config)}
    known |= {name.rpartition(".")[2] for name in known}  # a flag may leave out its section
    named = set(re.findall(r"--([a-z][\w.-]*)", text)) - {"best"}
    assert {"resume", "checkpoints.allow-change", "checkpoints.disk-full", "system.deterministic"} <= named <= known
    assert set(re.findall(r"GRPO_KILL_AT=([\w.]+)", text)) <= set(POINTS)
    kinds = set(re.findall(r"finding `(\w+)`", text))
    assert kinds == {"replay", "damaged", "nonfinite", "changed", "assumed"}
