"""A trainer in a process of its own, for tests to kill; and what a run left behind, to compare.

What it is asked to do besides training (die at a point, pause in a step, meet a gradient that is not finite) is in
`Orders`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import grpo.training.loop
from grpo import kill_points as faults
from grpo.cli.main import main
from grpo.model.policy import Policy
from grpo.record.checkpoints import Checkpoints
from grpo.record.metrics import is_timed
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Group, Problem
from helpers import forks
from helpers.ranks import free_port

SETTINGS = """
    --model nano --steps 6 --prompts-per-step 4 --group-size 4 --max-new-tokens 32 --lr 1e-3
    --checkpoint-every 2 --checkpoints.keep 1 --evaluation.every 3 --evaluation.problems 16 --evaluation.probes 1
    --system.threads 1 --system.device cpu --resume --quiet
"""
"""Checkpoints after 2, 4 and 6 steps, and after the best evaluation; evaluations after 0, 3 and 6."""


def command(folder: Path, run: str = "job", *more: str) -> list[str]:
    return ["train", *SETTINGS.split(), "--system.runs", str(folder), "--run", run, *more]


@dataclass(frozen=True)
class Orders:
    kill_at: str = ""
    """A point of `grpo.kill_points`."""
    count: int = 1
    pause_at: int = -1
    """A step whose scoring waits; the task is then `paused`."""
    seconds: float = 0.0
    nonfinite: frozenset[int] = field(default_factory=frozenset)
    """Steps whose gradient has one number that is not finite."""
    nohup: bool = False
    """SIGHUP is ignored when it starts."""
    terminal: str = ""
    """Its terminal, in place of the log."""
    environment: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()
    """Of one rank, in place of the arguments of all."""
    other_weights: int = -1
    """A number of updates after which one weight is changed."""


class Paused(Arithmetic):
    """`arithmetic:easy` that leaves a note and waits when it scores the first completion of a certain step."""

    def __init__(self, orders: Orders, note: Path):
        super().__init__("easy")
        self.orders, self.note = orders, note

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        if problem.id == f"train/{self.orders.pause_at}/0" and not self.note.exists():
            self.note.touch()
            time.sleep(self.orders.seconds)
        return dict(super().score(problem, text))


def poisoned(steps: frozenset[int]) -> Any:
    """`accumulate_gradients` with a gradient that is not finite in these steps."""
    real = grpo.training.loop.accumulate_gradients

    def accumulate(policy: Policy, groups: list[Group], config: Any, *more: Any) -> Any:
        result = real(policy, groups, config, *more)
        if int(groups[0].problem.id.split("/")[1]) in steps:
            next(policy.model.parameters()).grad.view(-1)[0] = float("nan")
        return result

    return accumulate


def disturbed(updates: int) -> Any:
    """`take_step` that changes the last bit of one weight after this many updates."""
    real = grpo.training.loop.take_step

    def take_step(policy: Policy, *arguments: Any, **more: Any) -> float:
        norm: float = real(policy, *arguments, **more)
        if policy.version == updates:
            weight = next(policy.model.parameters()).detach().view(-1).view(torch.int32)
            weight[5] ^= 1
        return norm

    return take_step


def _obey(argv: list[str], log: Path, orders: Orders) -> None:
    """In the child."""
    os.environ.update(orders.environment)
    if orders.terminal:
        os.setsid()  # the terminal opened next becomes the controlling terminal
    descriptor = os.open(orders.terminal or log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.register(signal.SIGUSR1, file=2)
    if orders.nohup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    torch.set_num_threads(1)
    faults._name, faults._remaining = orders.kill_at, orders.count
    if orders.other_weights >= 0:
        grpo.training.loop.take_step = disturbed(orders.other_weights)
    TASKS["paused"] = lambda _: Paused(orders, log.with_suffix(".paused"))
    if orders.nonfinite:
        grpo.training.loop.accumulate_gradients = poisoned(orders.nonfinite)
    sys.exit(main(argv))


class Trainer:
    """`grpo` in a child process, started at once."""

    def __init__(self, argv: list[str], folder: Path, orders: Orders | None = None):
        forks.ensure_running()
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"trainer-{time.monotonic_ns()}.log"
        self.note = self.log.with_suffix(".paused")
        self.process = forks.context.Process(target=_obey, args=(argv, self.log, orders or Orders()))
        self.process.start()
        atexit.register(self.send, signal.SIGKILL)  # where a test failed: nobody waits for it to end by itself

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """To a child that has ended, nothing."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_until(self, what: str, reading: int | None = None) -> None:
        """Until it paused (`what` is empty) or said something. `reading`: the other end of its terminal."""
        deadline = time.monotonic() + 60
        while not (what in self.said() if what else self.note.exists()):
            assert self.process.is_alive(), self.said()
            assert time.monotonic() < deadline, self.said()
            if reading is not None and select.select([reading], [], [], 0)[0]:
                os.read(reading, 1 << 16)
            time.sleep(0.005)

    def ended(self, timeout: float = 60) -> int:
        """Its exit code, or minus the signal that ended it."""
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            self.send(signal.SIGUSR1)  # where it is, thread by thread
            self.process.join(1)
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {timeout} s: {self.said()}")
        return code


class Ranks:
    """The ranks of one `grpo`, started at once without a launcher."""

    def __init__(self, size: int, argv: Sequence[str], folder: Path, orders: Mapping[int, Orders] | None = None):
        """`orders`: by rank."""
        port, by_rank = str(free_port()), [(orders or {}).get(rank, Orders()) for rank in range(size)]
        self.trainers = [
            Trainer(
                [*(order.argv or argv), "--scale.timeout", "30"],
                folder,
                replace(order, environment=environment_of(rank, size, port)),
            )
            for rank, order in enumerate(by_rank)
        ]

    def ended(self) -> list[int]:
        return [trainer.ended() for trainer in self.trainers]

    def said(self) -> list[list[str]]:
        """Errors and warnings of each rank; rank 0 also prints the run's results."""
        return [
            [line for line in trainer.said().splitlines() if line.startswith(("grpo:", "Traceback"))]
            for trainer in self.trainers
        ]


def environment_of(rank: int, size: int, port: str) -> dict[str, str]:
    """What torchrun writes."""
    number, count = str(rank), str(size)
    return {
        **{"RANK": number, "WORLD_SIZE": count, "LOCAL_RANK": number, "LOCAL_WORLD_SIZE": count},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCH_CPP_LOG_LEVEL": "ERROR"},
    }


TABLES = {
    "steps": "SELECT step FROM steps",
    "metrics": "SELECT * FROM metrics WHERE NOT is_timed(name)",
    "spans": "SELECT step, name FROM spans",
    "groups": "SELECT * FROM groups",
    "prompts": "SELECT * FROM prompts",
    "completions": "SELECT * FROM completions",
    "turns": "SELECT * FROM turns",
    "token_arrays": "SELECT * FROM token_arrays",
    "evals": "SELECT step FROM evals",
    "eval_metrics": "SELECT * FROM eval_metrics",
    "eval_groups": "SELECT * FROM eval_groups",
    "eval_completions": "SELECT * FROM eval_completions",
    "eval_turns": "SELECT * FROM eval_turns",
    "probes": "SELECT * FROM probes",
}
"""All of a record but its times, its findings, and what it says of itself."""


def contents(run: Path) -> dict[str, Any]:
    """All that a run recorded, times apart, and the hash of every file of its last checkpoint."""
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert checkpoint.damage() == ""
    db = sqlite3.connect(f"{(run / 'run.db').as_uri()}?mode=ro", uri=True)
    db.create_function("is_timed", 1, is_timed)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {*TABLES, "meta", "findings"}
        found = {name: sorted(db.execute(query).fetchall(), key=repr) for name, query in TABLES.items()}
    finally:
        db.close()
    return {**found, "checkpoint": checkpoint.step, "files": (checkpoint.path / "manifest.json").read_text()}


def assert_same(run: Path, expected: dict[str, Any]) -> None:
    found = contents(run)
    for name, value in expected.items():
        assert found[name] == value, name
    assert found.keys() == expected.keys()
