"""Generated return values of reward functions: finite numbers and None are taken, the rest is refused in one line."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np

from grpo.config import Scoring
from grpo.rewards import Scorer
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.invoke import Outcome, Request, invoke_each
from grpo.types import Completion, Group, Problem
from helpers.fuzz import Fuzz, budget
from helpers.hostile import scalar, values

COUNT = budget(2_600)
IN_WORKERS = 60
PLACE = r"^(reward|task) \S+, problem p, completion \d|: failed on \d+ of the last"
PROBLEM = Problem("p", "6*7=", "42", columns={"answer": "42"})
TEXTS = ("42", "41", "")


def sound(outcome: Outcome) -> None:
    """An outcome is a finite number, nothing, or a fault with its reason."""
    assert bool(outcome.fault) == bool(outcome.why)
    for value in outcome.parts.values():
        assert value is None or (type(value) is float and math.isfinite(value))


class Odd:
    """A task whose checker returns an odd value. It is trusted: scored in this process."""

    name = "odd"
    trusted = True

    def __init__(self, value: Any):
        self.value = value

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return [PROBLEM] * count

    def heldout(self) -> list[Problem]:
        return [PROBLEM]

    def score(self, problem: Problem, text: str) -> dict[str, Any]:
        return {"correct": self.value}


def group() -> Group:
    nothing = np.zeros(0, dtype=np.int64)
    return Group(PROBLEM, nothing, tuple(Completion(text, nothing, nothing, "stop") for text in TEXTS), 0)


def of_lists(rng: Random) -> None:
    """As in TRL: called with lists, in a batch and then one by one."""

    def reward(completions: list[str], **columns: Any) -> Any:
        return values(rng, len(completions))

    loaded = FunctionReward(Spec("python", "reward", 1.0), reward)
    loaded.load()
    outcomes = invoke_each(loaded, Request(PROBLEM, TEXTS))
    assert len(outcomes) == len(TEXTS)
    for outcome in outcomes:
        sound(outcome)


def of_one(rng: Random) -> None:
    loaded = FunctionReward(Spec("python", "reward", 1.0), lambda problem, text: scalar(rng))
    loaded.load()
    for outcome in invoke_each(loaded, Request(PROBLEM, TEXTS)):
        sound(outcome)


def of_a_task(rng: Random) -> None:
    value = scalar(rng) if rng.random() < 0.8 else values(rng, 1)
    with Scorer(Odd(value), scoring=Scoring(most_failures=1.0)) as scorer:
        for completion in scorer.score([group()])[0].completions:
            assert completion.reward is None or math.isfinite(completion.reward)


def test_every_value_is_taken_or_refused_in_one_line() -> None:
    fuzz = Fuzz("reward values", PLACE)
    for number, rng in fuzz.inputs(COUNT):
        call = (of_lists, of_lists, of_one, of_a_task)[number % 4]
        fuzz.call(number, lambda rng=rng, call=call: call(rng))
    fuzz.report(at_least=COUNT)


def test_workers_outlive_every_value() -> None:
    """The values are made in the workers, where they may also fail to be sent back."""
    fuzz = Fuzz("reward values in workers", PLACE)

    def reward(completions: list[str], **columns: Any) -> Any:
        if completions[0] == "sound":
            return [0.5]
        return values(Random(f"reward values/{completions[0]}"), len(completions))

    scoring = Scoring(workers=1, seconds=5.0, memory_gb=2.0, most_failures=1.0)
    with Scorer(Odd(0.0), "python:reward", scoring, functions={"reward": reward}) as scorer:
        scorer.ready([PROBLEM])

        def score(number: int) -> None:
            [completion] = scorer.score_texts([(PROBLEM, str(number))])
            assert completion.reward is None or math.isfinite(completion.reward)

        for number, _ in fuzz.inputs(IN_WORKERS):
            fuzz.call(number, lambda number=number: score(number))
        [completion] = scorer.score_texts([(PROBLEM, "sound")])
        assert completion.reward == 0.5
    fuzz.report(at_least=IN_WORKERS)
