"""Reward functions handed over as Python objects run in workers, like those of a file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.rewards.handed_over import take_rewards
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Completion, Group, Problem


def values(reward: Any, *texts: str) -> list[Completion]:
    text, functions = take_rewards(reward)
    nothing = np.zeros(0, dtype=np.int64)
    group = Group(Problem("p", "6*7=", "42"), nothing, tuple(Completion(t, nothing, nothing, "stop") for t in texts), 0)
    with Scorer(Arithmetic(), text, Scoring(workers=1, seconds=1.0), functions=functions) as scorer:
        return list(scorer.score([group])[0].completions)


def close(problem: Problem, text: str) -> float:
    return float(text == problem.answer)


class Longer:
    def __init__(self, than: int):
        self.than = than

    def __call__(self, problem: Problem, text: str) -> float:
        return float(len(text) > self.than)


def test_functions_lambdas_objects_and_texts_with_weights() -> None:
    few, offset = partial(lambda most, problem, text: float(len(text) < most), 3), 0.25
    rewards = [(close, 0.5), lambda problem, text: len(text) + offset, (Longer(3), -1), few, ("task", 2)]
    [right, wrong] = values(rewards, "42", "long")
    assert right.parts == {"close": 1.0, "lambda": 2.25, "Longer": 0.0, "lambda_2": 1.0, "correct": 1.0}
    assert right.reward == 0.5 + 2.25 + 1.0 + 2.0
    assert wrong.reward == 4.25 - 1.0


def test_functions_of_trl_and_async_functions() -> None:
    def lengths(completions: list[str], answer: list[str], **columns: object) -> list[float]:
        return [len(text) + float(gold) for text, gold in zip(completions, answer, strict=True)]

    async def later(completions: list[str], **columns: object) -> list[float]:
        return [1.0 for _ in completions]

    assert [done.reward for done in values([lengths, later], "a", "bb")] == [44.0, 45.0]


def test_a_function_that_hangs_exits_or_raises_costs_one_completion() -> None:
    def unruly(problem: Problem, text: str) -> float:
        if text == "hang":
            time.sleep(3600)
        if text == "exit":
            os._exit(3)
        if text == "raise":
            raise ValueError("no such luck")
        return float(os.getpid() != trainer)

    trainer = os.getpid()
    done = values(unruly, "hang", "exit", "raise", "fine")
    assert [one.reward for one in done] == [0.0, 0.0, None, 1.0]
    assert done[0].why == "timeout in reward python:unruly: no result after 1 s"
    assert done[1].why == "crash in reward python:unruly: its process exited with 3"
    assert "ValueError: no such luck" in done[2].why


def test_what_cannot_be_sent_is_refused_with_its_name() -> None:
    lock = threading.Lock()

    def locked(problem: Problem, text: str) -> float:
        with lock:
            return 1.0

    with pytest.raises(GrpoError, match=r"^locked: cannot be sent to a worker process \(TypeError: .*lock"):
        values(locked, "42")


class Unloadable:
    def __call__(self, problem: Problem, text: str) -> float:
        return 0.0

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return __import__, ("nothing_of_this_name",)


def test_what_cannot_be_loaded_is_refused_with_its_name() -> None:
    says = r"^Unloadable: cannot be loaded in a worker process \(ModuleNotFoundError: .*nothing_of_this_name"
    with pytest.raises(GrpoError, match=says):
        values(Unloadable(), "42")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ([], "field reward: the list is empty"),
        (Longer, "field reward: Longer is a class; hand over an object of it"),
        ([close, 3], "field reward: got an object of type int; give a function"),
        ((close, float("inf")), "field reward: the weight inf is not a finite number"),
        (("a.py:f, b.py:g", 2.0), "with a weight must be one reward"),
    ],
)
def test_what_is_not_a_reward_is_refused(reward: Any, says: str) -> None:
    with pytest.raises(GrpoError, match=says):
        take_rewards(reward)


def test_a_function_of_another_process_is_refused() -> None:
    with (
        pytest.raises(
            GrpoError, match=r"field reward: close came from Python and cannot be stored in .*; name another"
        ),
        Scorer(Arithmetic(), "python:close") as scorer,
    ):
        scorer.ready([])
