"""Dynamic sampling: groups without signal are replaced, up to a limit, and the same ones after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo
from grpo.config import Config, Evaluation, System
from grpo.config.schema import Loss
from grpo.distributed.world import ALONE
from grpo.rewards import Scorer
from grpo.rollout.scripted import ScriptedEngine
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.dynamic_sampling import fresh_problems, replace_without_signal, with_signal
from grpo.types import Group, Problem

LIVELY, DULL = ("1", "0"), ("0", "0")


class Characters:
    eos_token_id = 0

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


class Fake:
    """A session that draws problems whose answer is 1, and an engine that answers some of them both ways."""

    name = "ones"

    def __init__(self, lively: Sequence[bool], refill: float, prompts: int = 2, **loss: object):
        self.lively = list(lively)
        self.asked: list[tuple[int, int, int]] = []
        settings = {"beta": 0.0, "dynamic_sampling": refill} | loss
        self.config = Config(group_size=2, prompts_per_step=prompts, loss=Loss(**settings))
        self.task, self.engine, self.world = self, self, ALONE

    def sampling(self, step: int) -> None: ...

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        self.asked.append((step, count, seed))
        return [Problem(f"train/{step}/{i}", "p", "1") for i in range(count)]

    def sample(self, problems: Sequence[Problem], group_size: int, *_: object) -> list[Group]:
        texts = {problem.id: LIVELY if self.lively.pop(0) else DULL for problem in problems}
        return ScriptedEngine(Characters(), texts).sample(problems, group_size)

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        task = SimpleNamespace(
            name="ones", trusted=True, score=lambda problem, text: {"correct": float(text == problem.answer)}
        )
        return Scorer(task).score(groups)  # type: ignore[arg-type]

    def run(self) -> tuple[list[str], dict[str, float]]:
        problems = self.draw(7, self.config.prompts_per_step, self.config.seed)
        groups, draws = replace_without_signal(self.score(self.sample(problems, 2)), self, 7)  # type: ignore[arg-type]
        return [group.problem.id for group in groups], draws


def test_groups_without_signal_are_replaced_until_the_step_is_full() -> None:
    # Two groups, one without signal; the first replacement has none either, the second has.
    fake = Fake([True, False, False, True], refill=3.0)
    ids, draws = fake.run()
    assert ids == ["train/7/0", "train/7/0+2"]
    assert draws == {"groups_drawn": 4.0, "groups_kept": 2.0, "tokens": 16.0}
    # Each round asks for what is missing, with a seed of its own.
    assert [(step, count) for step, count, _ in fake.asked] == [(7, 2), (7, 1), (7, 1)]
    assert len({seed for _, _, seed in fake.asked}) == 3


def test_the_limit_holds_and_the_step_goes_on_with_what_it_has() -> None:
    ids, draws = Fake([True, False, False, False, False], refill=2.5).run()
    assert ids == ["train/7/0"]
    assert draws == {"groups_drawn": 5.0, "groups_kept": 1.0, "tokens": 20.0}


def test_where_none_has_signal_the_first_ones_stay() -> None:
    ids, draws = Fake([False] * 6, refill=3.0).run()
    assert ids == ["train/7/0", "train/7/1"]
    assert draws == {"groups_drawn": 6.0, "groups_kept": 0.0, "tokens": 24.0}


def test_off_it_draws_nothing() -> None:
    fake = Fake([True, False], refill=1.0)
    assert fake.run() == (["train/7/0", "train/7/1"], {})
    assert len(fake.asked) == 1


def test_a_kl_divergence_in_the_reward_is_no_signal() -> None:
    """It differs in every completion; and no reference has been asked yet."""
    ids, _ = Fake([True, False, True], refill=2.0, beta=0.1, kl_in="reward", kl="k1", scale="none").run()
    assert ids == ["train/7/0", "train/7/0+1"]


def test_nor_is_a_reward_that_only_masked_completions_differ_in() -> None:
    fake = Fake([True], refill=2.0, prompts=1)
    [lively] = fake.score(fake.sample(fake.draw(0, 1, 1), 2))
    cut = replace(lively, completions=tuple(replace(done, finish="length") for done in lively.completions))
    masked = replace(fake.config, loss=replace(fake.config.loss, mask_truncated=True))
    assert with_signal([lively, cut], fake.config) == [lively, cut]
    assert with_signal([lively, cut], masked) == [lively]


def test_problems_of_a_round_are_fresh_and_a_function_of_seed_step_and_round() -> None:
    task = Arithmetic()
    first = task.draw(3, 8, seed=1)
    rounds = [fresh_problems(task.draw, 3, number, 8, seed=1) for number in (1, 2)]
    assert rounds[0] == fresh_problems(task.draw, 3, 1, 8, seed=1)
    assert rounds[0] != fresh_problems(task.draw, 4, 1, 8, seed=1) != fresh_problems(task.draw, 3, 1, 8, seed=2)
    ids = [problem.id for problems in (first, *rounds) for problem in problems]
    prompts = {problem.prompt for problems in (first, *rounds) for problem in problems}
    assert len(set(ids)) == 24
    assert len(prompts) > 20


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        model="nano",
        algorithm="dapo",
        steps=4,
        prompts_per_step=4,
        group_size=2,  # two completions are often equal
        max_new_tokens=32,
        checkpoint_every=0,
        evaluation=Evaluation(every=0, problems=4, probes=0),
        system=System(runs=str(tmp_path), threads=1),
    )


def test_a_run_trains_on_groups_with_signal_alone(config: Config) -> None:
    run = grpo.train(config)
    rows = run.metrics()
    assert sum(row["groups_drawn"] for row in rows) > sum(row["groups_kept"] for row in rows)
    assert all(row["zero_signal_groups"] == 0 for row in rows if row["groups_kept"])
    for step, row in enumerate(rows):
        recorded = run.groups(step)
        assert len(recorded) == row["groups_kept"] or row["groups_kept"] == 0
        assert all(len({c["advantage"] for c in group["completions"]}) == 2 for group in recorded)
    # Without it, the same draws leave groups that teach nothing.
    without = grpo.train(replace(config, loss=replace(config.loss, dynamic_sampling=1.0))).metrics()
    assert sum(row["zero_signal_groups"] for row in without) > 0
    assert "groups_drawn" not in without[0]
