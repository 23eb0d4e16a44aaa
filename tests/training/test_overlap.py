"""What does not depend on rewards goes on while completions are scored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.config import System
from grpo.rewards import Pending
from grpo.rollout.cpu.decoding import StepDecoding
from grpo.training.annotations import Annotations
from grpo.training.session import Session
from helpers.runs import small

REWARD = """
import time
from pathlib import Path

def patient(problem, text):
    if not problem.id.startswith("train/"):
        return 0.5
    Path({begun!r}).touch()
    deadline = time.monotonic() + 60
    while not Path({noted!r}).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return float(len(text) % 3)
"""


def test_scoring_goes_on_while_the_reference_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference begins once a worker scores, and the worker ends once the reference is done."""
    begun, noted, real = tmp_path / "begun", tmp_path / "noted", Annotations.start

    def start(*arguments: Any) -> Any:
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < deadline, "nothing is scored yet"
            time.sleep(0.002)
        found = real(*arguments)
        noted.touch()
        return found

    (tmp_path / "mine.py").write_text(REWARD.format(begun=str(begun), noted=str(noted)))
    monkeypatch.setattr(Annotations, "start", start)
    run = grpo.train(small(tmp_path, steps=1, reward=f"{tmp_path}/mine.py:patient"))
    completions = [done for group in run.groups(0) for done in group["completions"]]
    assert [done["reward"] for done in completions] == [float(len(done["text"]) % 3) for done in completions]
    [row] = run.metrics()
    assert (row["timeouts"], row["failures"]) == (0, 0)
    assert row["kl"] >= 0, "the reference was asked"


@pytest.mark.parametrize(("rows", "expected"), [(16, "DS"), (8, "DSDS"), (4, "DSDSDSDS"), (3, "DDSDSDSDDS")])
def test_a_group_is_scored_while_others_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, expected: str
) -> None:
    """Four groups of four, which end between two looks. D: rows are decoded, S: the scoring of finished groups starts.
    Of three rows at a time, the second three hold the last completion of the first group."""
    events: list[str] = []
    real_decode, real_add, real_sample = StepDecoding.decode, Pending.add, Session.sample

    def decode(self: StepDecoding, tokens: int) -> list[int]:
        events.append("D")
        return real_decode(self, tokens)

    def add(self: Pending, groups: Any) -> None:
        events.append("S")
        real_add(self, groups)

    def sample(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as listening:
            listening.setattr(StepDecoding, "decode", decode)
            listening.setattr(Pending, "add", add)
            return real_sample(*arguments)

    monkeypatch.setattr(Session, "sample", sample)
    run = grpo.train(
        small(tmp_path, steps=1, system=System(runs=str(tmp_path), threads=1, max_concurrent_completions=rows))
    )
    assert "".join(events) == expected
    assert [group["group_index"] for group in run.groups(0)] == [0, 1, 2, 3]
