"""A run of episodes from end to end: what it trains on, records and finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import grpo
from grpo.config import System
from grpo.config.presets import PRESETS
from grpo.core import turn_advantages
from grpo.errors import GrpoError
from grpo.lab.whatif import what_if
from grpo.record.diagnosis import diagnose
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Completion, Problem
from helpers.runs import small


class AsksAgain(Arithmetic):
    """Asks again once; twice after a first answer of an odd number of characters."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return None if len(turns) > 1 + len(turns[0]) % 2 else "12="


def test_what_is_sampled_is_trained_and_both_sides_are_recorded(tmp_path: Path) -> None:
    with grpo.train(small(tmp_path, steps=2), task=AsksAgain()) as run:
        for metrics in run.metrics():
            step = metrics["step"]
            assert metrics["sampler_gap"] <= 1e-5
            turns, completions = run.turns(step), run.completions(step)
            own, read = ([row for row in turns if (row["who"] == "model") == mine] for mine in (True, False))
            assert metrics["turns_mean"] == len(own) / len(completions)
            assert {row["text"] for row in read} == {"12="}
            assert metrics["observation_tokens"] == 3 * len(read) / len(completions)
            assert metrics["tokens"] == sum(row["tokens"] for row in own) == sum(row["length"] for row in completions)
            assert metrics["observation_wait"] >= 0
        assert run.evals()[0]["turns_mean"] >= 2
        assert [row["kind"] for row in run.findings()] == []


def test_a_trainer_that_does_not_read_observations_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Completion, "sequence", property(lambda done: done.tokens))
    monkeypatch.setattr(Completion, "sampled", property(lambda done: np.ones(len(done), dtype=bool)))
    with pytest.raises(GrpoError, match="sampler and trainer disagree on nano"):  # in trial episodes
        grpo.train(small(tmp_path), task=AsksAgain())
    monkeypatch.setattr("grpo.training.preflight.check_agreement", lambda *_: None)
    with grpo.train(small(tmp_path, steps=2), task=AsksAgain()) as run:
        [finding] = [each for each in diagnose(run) if each.kind == "trained_observations"]
        assert finding.value == run.metrics()[0]["sampler_gap"] > 0.1
        assert ("trained_observations", 1) in [(row["kind"], row["step"]) for row in run.findings()]


class RewardsTurns(AsksAgain):
    def turn_rewards(self, problem: Problem, turns: Sequence[str]) -> list[float]:
        return [len(turn) / 4 for turn in turns]


def test_turns_are_credited_by_their_own_rewards_and_states(tmp_path: Path) -> None:
    """Of the recorded turns, once more: rewards of turns add up to the reward, states are the texts read before."""
    every_token = System(runs=str(tmp_path), device="cpu", threads=1, token_groups=4)
    config = replace(small(tmp_path, steps=2), algorithm="gigpo", loss=PRESETS["gigpo"].settings, system=every_token)
    with grpo.train(config, task=RewardsTurns()) as run:
        arrays = {(row["group_index"], row["sample_index"]): row["advantages"] for row in run.token_arrays(1)}
        for group in run.groups(1):
            rewards, states, lengths = [], [], []
            for done in group["completions"]:
                turns = done["turns"]
                own, read = ([row for row in turns if (row["who"] == "model") == mine] for mine in (True, False))
                assert [row["reward"] for row in own] == [len(row["text"]) / 4 for row in own]
                earned = [row["reward"] for row in own]
                rewards.append([*earned[:-1], done["reward"] - sum(earned[:-1])])
                states.append([tuple(row["text"] for row in read[:turn]) for turn in range(len(own))])
                lengths.append([row["tokens"] for row in own])
            expected = turn_advantages(rewards, states)
            for done, of_turns, tokens in zip(group["completions"], expected, lengths, strict=True):
                found = arrays[done["group_index"], done["sample_index"]]
                assert found == pytest.approx(np.repeat(of_turns.numpy(), tokens), abs=1e-6)
        assert 0 < run.metrics()[1]["compared_turns"] <= 1
        # The lab computes the same again from the record.
        answer = what_if(run, 1, {})
        shown = [done for group in answer["groups"] for done in group["completions"]]
        assert [done["advantage"] for done in shown] == pytest.approx(
            [d["recorded"]["advantage"] for d in shown], abs=1e-5
        )
        assert answer["traced"]["now"]["loss"] == pytest.approx(run.metrics()[1]["loss"], rel=1e-3, abs=2e-6)
    by_turn = replace(config, algorithm="grpo", loss=replace(PRESETS["grpo"].settings, credit="process"))
    with grpo.train(by_turn, task=RewardsTurns()) as run:
        assert any(len(set(row["advantages"])) > 1 for row in run.token_arrays(1))
