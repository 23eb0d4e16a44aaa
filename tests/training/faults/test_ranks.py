"""Runs of several ranks: one of them is killed, differs or fails, and the run goes on with as many or another number.

A quick form is part of `make test`; `make faults` (GRPO_FAULTS=all) runs every case.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

import grpo
from grpo.cli.main import main
from grpo.config.schema import parse_train
from grpo.distributed.world import World
from grpo.errors import GrpoError
from grpo.kill_points import POINTS, STATIONS
from grpo.model.oom_retry import DEFAULT_TOKENS
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.lock import RunLock
from grpo.record.store import Run
from grpo.training.session import Session
from helpers.faults import ALL, Whole, assert_resumed, findings, last_step, status
from helpers.ranks import ranks
from helpers.trainer import Orders, Ranks, Trainer, command, contents

SHARDED = ("--scale.shard", "optimizer")
PASSED = {"update": 4, "record": 4, "checkpoint": 2, "groups": 9, "gradients": 4, "weights": 3}
"""How many times to pass the points of each kind, so that there is a checkpoint to go on from."""
EVERY = [
    *((point, 0) for point in (*POINTS, *STATIONS)),
    *((point, 1) for point in (*POINTS[:2], *STATIONS)),
]
CHOSEN = [("groups.gathered", 1), ("update.stepped", 0), ("weights.published", 1), ("checkpoint.model", 0)]


def flags_of(point: str) -> tuple[str, ...]:
    return SHARDED if point in ("weights.published", "checkpoint.gathered") else ()


@pytest.mark.parametrize(("point", "rank"), EVERY if ALL else CHOSEN)
def test_a_rank_killed_at_a_point(tmp_path: Path, whole: Whole, point: str, rank: int) -> None:
    argv = command(tmp_path, "job", *flags_of(point))
    count = 1 if point == "checkpoint.pruning" else PASSED[point.partition(".")[0]]
    killed = Ranks(2, argv, tmp_path, {rank: Orders(kill_at=point, count=count)})
    assert killed.ended() == ([-signal.SIGKILL, 1] if rank == 0 else [1, -signal.SIGKILL]), killed.said()
    [line] = killed.said()[1 - rank]
    assert line.startswith(f"grpo: rank {1 - rank} on {socket.gethostname()} has lost the connection")
    checkpoint = Checkpoints(tmp_path / "job").newest()
    assert checkpoint is not None
    again = Ranks(2, argv, tmp_path)
    assert again.ended() == [0, 0], again.said()
    assert_resumed(tmp_path / "job", whole(*flags_of(point), ranks=2))


FAMILY = {
    "critic and refreshed reference": (*SHARDED, "--algorithm=ppo", "--critic.warmup-steps=1", "--loss.refresh=3"),
    "replaced groups": ("--algorithm=dapo", "--group-size=2", "--loss.beta=0.1"),
    "adapters": ("--lora.rank=4",),
    "four updates": (*SHARDED, "--optimizer.epochs=2", "--optimizer.minibatches=2"),
}


@pytest.mark.skipif(not ALL, reason="part of make faults")
@pytest.mark.parametrize("variant", FAMILY)
def test_a_rank_killed_with_more_than_a_policy(tmp_path: Path, whole: Whole, variant: str) -> None:
    argv = command(tmp_path, "job", *FAMILY[variant])
    killed = Ranks(2, argv, tmp_path, {1: Orders(kill_at="groups.gathered", count=9)})
    assert killed.ended() == [1, -signal.SIGKILL], killed.said()
    again = Ranks(2, argv, tmp_path)
    assert again.ended() == [0, 0], again.said()
    assert_resumed(tmp_path / "job", whole(*FAMILY[variant], ranks=2))


@pytest.mark.skipif(not ALL, reason="part of make faults")
def test_a_killed_rank_is_restarted_and_the_run_goes_on_by_itself(tmp_path: Path, whole: Whole) -> None:
    """Started again, rank 1 has two updates left and is not killed a second time."""
    environment = {"GRPO_KILL_AT": "update.stepped:5@1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = Trainer([*command(tmp_path), "--gpus", "2"], tmp_path, Orders(environment=environment))
    assert launcher.ended(timeout=180) == 0, launcher.said()
    host = socket.gethostname()
    lines = [line for line in launcher.said().splitlines() if line.startswith("grpo:")]
    assert lines == [f"grpo: rank 1 on {host} was killed by SIGKILL; restart 1 of 3 from the last checkpoint"]
    assert_resumed(tmp_path / "job", whole(ranks=2))


# Another number of ranks, another division


def weights_of(run: Path) -> dict[str, np.ndarray]:
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert checkpoint.damage() == ""
    return load_file(checkpoint.model / "model.safetensors") | load_file(checkpoint.path / "optimizer.safetensors")


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        distance = np.linalg.norm(found[name].astype(float) - array) / max(np.linalg.norm(array.astype(float)), 1e-30)
        assert distance < 1e-5, name


def test_a_run_goes_on_with_other_numbers_of_ranks_and_other_divisions(tmp_path: Path, whole: Whole) -> None:
    expected = whole(ranks=2)
    sessions = [(2, "2", ()), (1, "3", ()), (3, "4", SHARDED), (3, "5", ()), (2, "6", SHARDED)]
    for size, steps, flags in sessions:
        session = Ranks(size, command(tmp_path, "job", "--steps", steps, *flags), tmp_path)
        assert session.ended() == [0] * size, session.said()
        checkpoint = Checkpoints(tmp_path / "job").newest()
        assert checkpoint is not None
        assert checkpoint.state["world_size"] == size
    run = tmp_path / "job"
    assert_close(weights_of(run), weights_of(whole.path(ranks=2)))
    found = contents(run)
    assert found["steps"] == expected["steps"]
    # Rows begin with step, group and sample; the text follows.
    assert [row[:4] for row in found["completions"]] == [row[:4] for row in expected["completions"]]
    rounded = "results agree to rounding, not bit for bit"
    assert findings(run) == [
        ("world_size", 2, f"from step 2 on the run has 1 rank instead of 2; {rounded}"),
        ("world_size", 3, f"from step 3 on the run has 3 ranks instead of 1; {rounded}"),
        ("world_size", 5, f"from step 5 on the run has 2 ranks instead of 3; {rounded}"),
    ]
    # Files as a run of one rank has them.
    assert set(weights_of(run)) == set(weights_of(whole.path()))
    assert main(["export", "job", str(tmp_path / "out"), "--runs", str(tmp_path)]) == 0
    assert main(["eval", "job", "--runs", str(tmp_path), "--problems", "4"]) == 0


def sizes_of(world: World, argv: list[str]) -> tuple[int, int, int]:
    """Tokens per micro-batch, completions at once and blocks of the KV cache of this rank, of a resumed run."""
    session = Session.start(parse_train(argv[1:]), world=world)
    with session.recorded():
        return session.policy.token_budget, session.engine.max_concurrent, session.engine.cache_blocks


def test_each_rank_gets_back_its_sizes(tmp_path: Path, whole: Whole) -> None:
    shutil.copytree(whole.path(ranks=2), tmp_path / "job")
    argv = command(tmp_path)
    with Run.open(tmp_path, "job") as run:
        run.set_meta("token_budgets", [700, 350])
        run.set_meta("max_concurrent", [6, 5])
        run.set_meta("cache_blocks", [60, 50])
    assert ranks(2, sizes_of, argv) == [(700, 6, 60), (350, 5, 50)]
    usual = ranks(3, sizes_of, argv)
    assert {(tokens, blocks) for tokens, _, blocks in usual} == {(DEFAULT_TOKENS, 0)}, "a CPU counts rows"
    with Run.open(tmp_path, "job") as run:
        kept = (run.meta(name) for name in ("token_budgets", "max_concurrent", "cache_blocks"))
        assert [*zip(*kept, strict=True)] == usual


def test_other_ranks_need_neither_run_nor_checkpoint(tmp_path: Path, whole: Whole) -> None:
    """As on another host: there, the folder of runs is empty."""
    (tmp_path / "elsewhere").mkdir()
    for steps in ("4", "6"):
        argv = command(tmp_path, "job", *SHARDED, "--steps", steps)
        there = [str(tmp_path / "elsewhere") if word == str(tmp_path) else word for word in argv]
        run = Ranks(2, argv, tmp_path, {1: Orders(argv=there)})
        assert run.ended() == [0, 0], run.said()
    assert os.listdir(tmp_path / "elsewhere") == []
    found, expected = contents(tmp_path / "job"), whole(*SHARDED, ranks=2)
    for name in ("metrics", "completions", "groups", "token_arrays", "files"):
        assert found[name] == expected[name], name
    assert findings(tmp_path / "job") == []


# Errors of one rank


def test_ranks_whose_weights_differ_are_named_at_a_checkpoint(tmp_path: Path, whole: Whole) -> None:
    argv = command(tmp_path)
    run = Ranks(2, argv, tmp_path, {1: Orders(other_weights=3)})
    assert run.ended() == [2, 2]
    line = (
        f"grpo: after 3 steps the weights of rank 1 on {socket.gethostname()} differ from those of rank 0; older "
        "checkpoints are intact, resume from them (--resume) and check these machines"
    )
    assert run.said() == [[line], []]
    assert (status(tmp_path / "job"), last_step(tmp_path / "job")) == ("failed", 2)
    checkpoint = Checkpoints(tmp_path / "job").newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (2, "")


def test_what_rank_0_cannot_open_is_refused_on_all_ranks(tmp_path: Path, whole: Whole) -> None:
    run = tmp_path / "job"
    shutil.copytree(whole.path(ranks=2), run)
    lock = RunLock(run)
    busy = Ranks(2, command(tmp_path), tmp_path)
    assert busy.ended() == [2, 2]
    line = f"grpo: field run: job is being trained by process {os.getpid()}; wait for it, or choose --run OTHER"
    assert busy.said() == [[line], []]
    lock.close()

    (run / "run.db").write_bytes(b"no longer a record" * 1000)
    damaged = Ranks(2, command(tmp_path), tmp_path)
    assert damaged.ended() == [2, 2]
    [line], others = damaged.said()
    assert line.startswith(f"grpo: field run: {run / 'run.db'} cannot be read as a run record (")
    assert others == []


class NoSpace(Callback):
    """The disk is full for checkpoints after the first one."""

    def on_checkpoint(self, *_: object) -> None:
        shutil.disk_usage = lambda _: SimpleNamespace(free=100)


def trained_on_a_full_disk(world: World, argv: list[str]) -> str:
    """The error that ends this rank."""
    try:
        grpo.train(parse_train(argv[1:]), callbacks=[NoSpace()])
    except GrpoError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_full_disk_of_rank_0_ends_all_ranks(tmp_path: Path, whole: Whole) -> None:
    first, second = ranks(2, trained_on_a_full_disk, command(tmp_path))
    assert first.startswith(f"DiskFullError: {tmp_path}/job/checkpoints: the disk is full, step-000003 cannot be ")
    assert second == first.replace("DiskFullError: ", f"RankError: rank 0 on {socket.gethostname()}: ")
    again = Ranks(2, command(tmp_path), tmp_path)
    assert again.ended() == [0, 0], again.said()
    assert_resumed(tmp_path / "job", whole(ranks=2))
