"""The ranks of a run: what each gets, what all know, and how an error of one ends all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.training.preflight import check_golds
from grpo.types import Completion, Problem
from helpers.ranks import listening_at, outcomes, ranks


def conversation(world: World) -> dict[str, object]:
    items = [f"item {i}" for i in range(8)]
    big = bytes([world.rank]) * (5000 * world.rank)
    return {
        "gathered": world.gather(world.mine(items)) == items,
        "few": world.gather(world.mine(items[:1])),
        "none": world.gather(world.mine([])),
        "met": world.meet({"rank": world.rank}),
        "big": [len(text) for text in world.meet(big)],
        "any": (world.any(world.rank == 2), world.any(False)),
        "first": world.from_first(lambda: f"made by {world.rank}"),
        "hosts": len(set(world.hosts)),
        "open to": listening_at(os.getpid()) if world.size > 1 else set(),
    }


def test_all_ranks_know_what_each_of_them_said() -> None:
    for size in (1, 3):
        found = [conversation(ALONE)] if size == 1 else ranks(size, conversation)
        for each in found:
            assert each == {
                "gathered": True,
                "few": ["item 0"],
                "none": [],
                "met": [{"rank": rank} for rank in range(size)],
                "big": [5000 * rank for rank in range(size)],
                "any": (size == 3, False),
                "first": "made by 0",
                "hosts": 1,
                "open to": {"127.0.0.1"} if size > 1 else set(),
            }


def test_shares_cover_every_item_once_and_are_balanced() -> None:
    sizes = [9, 1, 8, 7, 2, 6, 3, 5, 4, 0]
    shares = [World(rank=rank, size=3).share(range(10), sizes) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(10))
    assert all(share == sorted(share) for share in shares)
    assert sorted(sum(sizes[item] for item in share) for share in shares) == [14, 15, 16]


def fail_on_rank_1(world: World, error: Exception) -> str:
    try:
        if world.rank == 1:
            raise error
        world.gather([1, 2, 3])
    except (GrpoError, ZeroDivisionError) as error:
        world.fail(error)
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nobody failed")


def test_an_error_of_one_rank_is_the_error_of_all() -> None:
    found = ranks(3, fail_on_rank_1, GrpoError("field lr: too high; lower it"))
    assert found[1] == "GrpoError: field lr: too high; lower it"
    assert found[0] == found[2]
    assert found[0].startswith("RankError: rank 1 on ")
    assert found[0].endswith(": field lr: too high; lower it")


def test_a_crash_of_one_rank_is_one_that_a_restart_may_help() -> None:
    found = ranks(2, fail_on_rank_1, ZeroDivisionError("of 3"))
    assert found[1] == "ZeroDivisionError: of 3"
    assert found[0].startswith("LostRankError: rank 1 on ")
    assert found[0].endswith(": ZeroDivisionError: of 3")


def fail_in_a_tensor_exchange(world: World) -> str:
    import torch
    import torch.distributed as dist

    try:
        with world.exchanging():
            if world.rank == 1:
                raise torch.OutOfMemoryError
            dist.all_reduce(torch.ones(4), group=world.tensors)
    except torch.OutOfMemoryError as error:
        world.fail(error)  # returns at once: the others are waiting elsewhere
        os._exit(1)
    except GrpoError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nobody failed")


def die(world: World) -> str:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        world.meet(None)
    except GrpoError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nobody died")


def test_a_rank_that_is_gone_is_noticed_at_once() -> None:
    for work in (fail_in_a_tensor_exchange, die):
        [(ok, text), _] = outcomes(2, work)
        assert ok, text
        assert text.startswith("LostRankError: rank 0 on ")


def hang(world: World) -> str:
    if world.rank == 1:
        time.sleep(5)
        return ""
    try:
        world.meet(None)
    except GrpoError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nobody was late")


def test_a_rank_that_does_not_arrive_is_named() -> None:
    found = outcomes(3, hang, timeout=2.0)
    for rank in (0, 2):
        ok, text = found[rank]
        assert ok, text
        assert text.startswith("LostRankError: field scale.timeout: rank 1 on ")
        assert text.endswith(" did not answer within 2 s")


def checked_golds(world: World) -> tuple[list[str], str]:
    """(answers that this rank checked, the error)"""
    checked: list[str] = []

    def score_texts(pairs: Iterable[tuple[Problem, str]]) -> list[Completion]:
        checked.extend(answer for _, answer in pairs)
        empty = np.zeros(0, dtype=np.int64)
        return [Completion(answer, empty, empty, "stop", reward=1.0, correct=answer != "7") for answer in checked]

    scorer: Any = SimpleNamespace(checks_golds=True, task=SimpleNamespace(name="sums"), score_texts=score_texts)
    problems = [Problem(str(i), f"{i}+0=", str(i)) for i in range(9)]
    with pytest.raises(GrpoError) as found:
        check_golds(scorer, problems, world)
    return checked, str(found.value)


def test_ranks_divide_the_gold_answers_and_all_know_which_are_wrong() -> None:
    wrong = "task sums: 1 of 9 gold answers do not pass their own check; the first is problem 7, answer '7'"
    for size in (1, 2):
        found = [checked_golds(ALONE)] if size == 1 else ranks(size, checked_golds)
        assert found == [([str(i) for i in range(rank, 9, size)], wrong) for rank in range(size)]
