"""Runs with an environment, from end to end: prompts, turns, rewards and faults in the record."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.episodes.environments import seed_of
from grpo.errors import GrpoError
from grpo.rewards.place import Place
from grpo.types import Problem
from helpers.environments import Products, Sums, half
from helpers.runs import small


class Different(Sums):
    """Begins each episode with another sum."""

    def reset(self, **columns: Any) -> str:
        random.seed(os.urandom(8))
        return "1" + super().reset()


class Unlucky(Sums):
    """Cannot begin the first problem of the second step."""

    def reset(self, seed: int) -> str:
        if seed == seed_of(Problem("train/1/1/0", "", "")):
            raise ConnectionError("no server")
        return super().reset()


class Broken(Sums):
    def reset(self, **columns: Any) -> str:
        raise ConnectionError("no server")


def test_an_environment_makes_the_problems_answers_and_rewards(tmp_path: Path) -> None:
    config = small(tmp_path, steps=2, max_new_tokens=64)
    with grpo.train(config, env=Sums) as run, grpo.train(config, env=Sums) as again:
        assert run.config["task"] == "env"
        for metrics in run.metrics():
            step = metrics["step"]
            assert metrics["sampler_gap"] <= 1e-5
            completions, turns = run.completions(step), run.turns(step)
            for row in completions:
                assert row["reward"] == sum(turn["reward"] for turn in turns_of(row, turns)) >= 0.25
            assert metrics["turns_mean"] > 1
            assert turns == again.turns(step)
        assert run.evals()[0]["reward_mean"] >= 0.25
        assert [row["kind"] for row in run.findings()] == []


def turns_of(row: dict[str, Any], turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    place = ("group_index", "sample_index")
    return [turn for turn in turns if turn["who"] == "model" and all(turn[name] == row[name] for name in place)]


def test_episodes_that_begin_differently_are_trained_on_what_they_read(tmp_path: Path) -> None:
    with grpo.train(small(tmp_path, steps=1, max_new_tokens=64), env=Different) as run:
        [metrics] = run.metrics()
        assert metrics["sampler_gap"] <= 1e-5
        opened = [turn for turn in run.turns(0) if turn["who"] != "model" and turn["after"] == 0]
        assert len({turn["text"] for turn in opened}) > 2


def test_an_environment_that_cannot_begin_stops_the_run_before_it_is_made(tmp_path: Path) -> None:
    message = r"episodes: each of 4 trial episodes went wrong, the first with failure: ConnectionError: no server"
    with pytest.raises(GrpoError, match=message):
        grpo.train(small(tmp_path, steps=1), env=Broken)
    assert not [*tmp_path.glob("runs/*")]


def test_an_environment_that_sometimes_cannot_begin_costs_these_episodes(tmp_path: Path) -> None:
    """Also without a prompt of the data: nothing is left to read but a token that stands for it."""
    config = small(tmp_path, steps=2, max_new_tokens=64, prompts_per_step=2, group_size=4)
    with grpo.train(config, env=Unlucky) as run:
        rows = {step: run.completions(step) for step in (0, 1)}
        failed = [row for row in rows[1] if "ConnectionError: no server" in row["why"]]
        assert [row["reward"] for row in failed] == [None] * 4, "a whole group"
        assert {row["group_index"] for row in failed} == {0}
        assert all(row["reward"] is not None for step in rows for row in rows[step] if row not in failed)
        assert [metrics["sampler_gap"] <= 1e-5 for metrics in run.metrics()] == [True, True]


def test_reward_functions_read_the_environments_of_a_run(tmp_path: Path) -> None:
    """As in TRL's examples. Episodes of two turns earn 1 from it, and what the environment itself gave."""
    config = small(tmp_path, steps=1, max_new_tokens=64)
    with grpo.train(config, env=Sums, reward=half) as run:
        rows = run.completions(0)
        assert {row["part_half"] for row in rows} <= {0.5, 1.0}
        assert [row["reward"] for row in rows] == [row["part_Sums"] + row["part_half"] for row in rows]
        turns = run.turns(0)
        assert [row["reward"] for row in rows] == [sum(each["reward"] for each in turns_of(row, turns)) for row in rows]


def test_rows_name_their_environment(tmp_path: Path) -> None:
    rows = [{"prompt": str(i), "environment": name} for name in ("sums", "products") for i in range(1, 21)]
    config = small(tmp_path, steps=2, max_new_tokens=64)
    with grpo.train(config, env={"sums": Sums, "products": Products}, data=rows) as run:
        assert run.config["episodes"]["env"] == "sums=python:Sums, products=python:Products"
        found = run.completions()
        played = ["Products" if "*" in row["prompt"] else "Sums" for row in found]
        assert {*played} == {"Sums", "Products"}
        for row, name in zip(found, played, strict=True):
            assert row[f"part_{name}"] == row["reward"] >= 0.25
        assert all(metrics["sampler_gap"] <= 1e-5 for metrics in run.metrics())
    rows[0]["environment"] = "quotients"
    message = r"column environment names 'quotients'; known: sums, products"
    with pytest.raises(GrpoError, match=message):
        grpo.train(config, env={"sums": Sums, "products": Products}, data=rows)
    with pytest.raises(GrpoError, match=r"has no column environment, which names one of several"):
        grpo.train(config, env={"sums": Sums, "products": Products})


def test_evaluations_have_functions_of_their_own(tmp_path: Path) -> None:
    """Of the same name even; what they give counts in no turn of training."""
    config = small(tmp_path, steps=1, max_new_tokens=64)
    rewards = {"reward": lambda environments: [1.0], "eval_reward": lambda environments: [50.0]}
    with grpo.train(config, env=Sums, **rewards) as run:  # type: ignore[arg-type]
        turns = run.turns(0)
        for row in run.completions(0):
            assert row["reward"] == sum(turn["reward"] for turn in turns_of(row, turns)) < 10
        assert all(each["reward_mean"] > 50 for each in run.evals())

    def graded(environments: list[Any], levle: list[Any]) -> list[float]:
        return [0.0]

    with pytest.raises(GrpoError, match=r"reward python:graded: takes 'levle', which is neither a column"):
        grpo.train(config, env=Sums, reward=graded)


def test_a_file_that_trains_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(f"from grpo.rewards.place import Place\nPlace({str(file)!r}, 'f', 'reward').load()\n")
    with pytest.raises(GrpoError, match=r"script\.py trains when it is imported; put that under if __name__"):
        Place(str(file), "f", "reward").load()
