"""What one of three ranks meets alone: too little memory, no work, much work, a gradient that is not finite, a signal,
an error, other inputs. The run is that of one rank, or all ranks end with the same line."""

from __future__ import annotations

import io
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import grpo.training.fingerprint
from grpo.cli.main import main
from grpo.config import Config, Scale, Scoring
from grpo.distributed.world import World, joined
from grpo.errors import GrpoError
from grpo.model.oom_retry import DEFAULT_TOKENS
from grpo.model.policy import Policy, predicting_states
from grpo.record.checkpoints import Checkpoints
from grpo.record.store import Run
from grpo.rollout.builtin import Engine
from grpo.types import Batch, Group, Problem
from helpers.rank_runs import Direct, assert_same_run, metrics_of, short, trained
from helpers.ranks import ranks
from helpers.trainer import poisoned

SHARDED = Scale(shard="optimizer")
HOST = socket.gethostname()


# Runs that go on


def too_small(policy: Policy, batch: Batch) -> torch.Tensor:
    """`predicting_states` on a GPU whose memory holds 40 tokens."""
    if len(batch.tokens_T) > 40:
        raise torch.OutOfMemoryError
    return predicting_states(policy, batch)


def out_of_memory(world: World) -> AbstractContextManager[Any]:
    if world.rank != 1:
        return nullcontext()
    return mock.patch.multiple("grpo.training.gradient", predicting_states=too_small)


class OnePays(Direct):
    """Rewards only the first problem of a step."""

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return super().score(problem, text) if problem.id.endswith("/0") else {"direct": 1.0}


def one_long(world: World) -> AbstractContextManager[Any]:
    """One completion of each step has 200 tokens."""
    real = Engine.finished_groups

    def lengthened(group: Group) -> Group:
        if not group.problem.id.endswith("/1"):
            return group
        first, *others = group.completions
        tokens, logprobs = (np.resize(array, 200) for array in (first.tokens, first.logprobs))
        return replace(group, completions=(replace(first, tokens=tokens, logprobs=logprobs), *others))

    def finished_groups(engine: Engine, *arguments: Any) -> Iterator[dict[int, Group]]:
        for groups in real(engine, *arguments):
            yield {number: lengthened(group) for number, group in groups.items()}

    return mock.patch.object(Engine, "finished_groups", finished_groups)


def not_finite(world: World) -> AbstractContextManager[Any]:
    if world.rank != world.size // 2:
        return nullcontext()
    return mock.patch("grpo.training.loop.accumulate_gradients", poisoned(frozenset({1})))


def nothing(world: World) -> AbstractContextManager[Any]:
    return nullcontext()


Case = tuple[dict[str, Any], type[Direct], Callable[[World], AbstractContextManager[Any]]]
CASES: dict[str, Case] = {
    "memory": ({}, Direct, out_of_memory),
    "prompts-1": ({"prompts_per_step": 1}, Direct, nothing),
    "prompts-2": ({"prompts_per_step": 2, "scale": SHARDED}, Direct, nothing),
    "one-group": ({"algorithm": "dr_grpo", "scale": SHARDED}, OnePays, nothing),
    "one-long": ({}, Direct, one_long),
    "not-finite": ({}, Direct, not_finite),
    "not-finite-sharded": ({"scale": SHARDED}, Direct, not_finite),
}


def train_all(world: World, folder: Path) -> dict[str, list[int]]:
    found = {}
    for name, (changes, task, situation) in CASES.items():
        with situation(world), mock.patch("grpo.model.oom_retry.MIN_TOKENS", 8):
            config = short(folder, f"{name}-{world.size}", steps=3, **changes)
            found[name] = trained(world, config, task)
    return found


def test_a_rank_with_less_memory_no_work_or_much_work_changes_nothing(tmp_path: Path) -> None:
    ranks(1, train_all, tmp_path)
    first, *others = ranks(3, train_all, tmp_path)
    assert others == [first, first], "weights are bit-identical on all ranks"
    for name in CASES:
        assert_same_run(tmp_path / f"{name}-3", tmp_path / f"{name}-1")
    with Run.open(tmp_path, "memory-3") as run:
        before, tokens, after = run.meta("token_budgets")
        told = [finding["text"] for finding in run.findings() if finding["kind"] == "memory"]
    assert before == after == DEFAULT_TOKENS
    assert tokens <= 64
    assert told[0].startswith("step 0: rank 1 is out of memory; ")
    assert told[-1].endswith(f": rank 1 is out of memory; micro-batches now hold {tokens} tokens")
    for prompts, idle in ((1, "ranks 1 to 2 have"), (2, "rank 2 has")):
        with Run.open(tmp_path, f"prompts-{prompts}-3") as run:
            told = [finding["text"] for finding in run.findings() if finding["kind"] == "assumed"]
        assert f"prompts_per_step is {prompts}: {idle} nothing to sample; raise it to at least 3" in told
    for name in ("not-finite-3", "not-finite-sharded-3"):
        metrics = metrics_of(tmp_path / name)
        assert [metrics[step, "skipped_updates"] for step in range(3)] == [0, 1, 0]


# Runs that end


def on_rank_1() -> bool:
    return os.environ["RANK"] == "1"


class Fails(Direct):
    """Cannot score on rank 1 from the second step on."""

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        if on_rank_1() and problem.id.startswith("train/1/"):
            raise ZeroDivisionError("of rank 1")
        return super().score(problem, text)


class Crashes(Direct):
    """Is wrong itself on rank 1."""

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        if on_rank_1() and step == 1:
            raise ZeroDivisionError("of rank 1")
        return super().draw(step, count, seed)


class Wanders(Direct):
    """Draws other problems on rank 1 from the second step on."""

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return super().draw(step, count, seed + (on_rank_1() and step == 1))


class Stops(Direct):
    """Sends a signal to rank 1 in the second step."""

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        if on_rank_1() and step == 1:
            signal.raise_signal(signal.SIGTERM)
        return super().draw(step, count, seed)


def ended(config: Config, task: type[Direct]) -> str:
    try:
        with joined(config.scale, config.system.device) as world:
            trained(world, config, task)
    except (GrpoError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    return "it did not fail"


def end_all(world: World, folder: Path) -> dict[str, Any]:
    few = Scoring(most_failures=0.01)
    found: dict[str, Any] = {
        "reward": ended(short(folder, "reward", scoring=few), Fails),
        "crash": ended(short(folder, "crash"), Crashes),
        "draw": ended(short(folder, "draw"), Wanders),
        "replaced": ended(short(folder, "replaced", algorithm="dapo"), Wanders),
        "stop": trained(world, short(folder, "stop"), Stops),
    }
    real = grpo.training.fingerprint.fingerprints

    def other_torch(*arguments: Any) -> Mapping[str, Any]:
        return {**real(*arguments), **({"torch": "2.0.1"} if on_rank_1() else {})}

    argv = ["train", "--model", "nano", "--run", "other", "--system.runs", str(folder), "--system.device", "cpu"]
    with mock.patch("grpo.training.session.fingerprints", other_torch), redirect_stderr(io.StringIO()) as stderr:
        found["versions"] = (main(argv), stderr.getvalue())
    return found


def endings(found: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, ...]:
    return tuple(each[name] for each in found)


def test_what_ends_one_rank_ends_all_with_one_line(tmp_path: Path) -> None:
    found = ranks(3, end_all, tmp_path)
    first, second, third = endings(found, "reward")
    assert second.startswith("GrpoError: task arithmetic:easy: failed on ")
    assert "the last: failure: ZeroDivisionError: of rank 1" in second
    assert first == third == second.replace("GrpoError: ", f"RankError: rank 1 on {HOST}: ")

    lost = f"LostRankError: rank 1 on {HOST}: ZeroDivisionError: of rank 1"
    assert endings(found, "crash") == (lost, "ZeroDivisionError: of rank 1", lost)

    line = (
        f"GrpoError: task arithmetic:easy: in step 1 rank 1 on {HOST} drew other problems than rank 0; draw must "
        "depend on step, count and seed only"
    )
    assert endings(found, "draw") == endings(found, "replaced") == (line,) * 3
    for name in ("reward", "crash", "draw", "replaced"):
        with Run.open(tmp_path, name) as run:
            assert (run.status, run.last_step()) == ("failed", 0)

    assert found[1]["stop"] == found[2]["stop"] == found[0]["stop"]
    with Run.open(tmp_path, "stop") as run:
        assert (run.status, run.last_step()) == ("stopped", 1)
    checkpoint = Checkpoints(tmp_path / "stop").newest()
    assert checkpoint is not None
    assert checkpoint.step == 2

    differs = f"grpo: rank 1 on {HOST} differs from rank 0 on {HOST}: torch is '2.0.1', not '{version('torch')}'; "
    [(code, printed), *others] = endings(found, "versions")
    assert code == 2
    assert printed.startswith(differs)
    assert printed.count("\n") == 1
    assert others == [(2, ""), (2, "")]
    assert not (tmp_path / "other").exists()
