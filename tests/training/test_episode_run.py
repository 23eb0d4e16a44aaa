"""A run of episodes from end to end: what it trains on, records and finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import grpo
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
    with grpo.train(small(tmp_path, steps=2), task=AsksAgain()) as run:
        [finding] = [each for each in diagnose(run) if each.kind == "trained_observations"]
        assert finding.value == run.metrics()[0]["sampler_gap"] > 0.1
        assert ("trained_observations", 1) in [(row["kind"], row["step"]) for row in run.findings()]
