"""What does not depend on rewards goes on while completions are scored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.config import System
from grpo.rewards import Pending
from grpo.rollout.builtin import Engine
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


@pytest.mark.parametrize(("rows", "batches"), [(8, 2), (4, 4), (3, 4), (16, 1)])
def test_a_sampling_batch_is_scored_while_the_next_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, batches: int
) -> None:
    """Four groups of four; a sampling batch of three completions waits for the rest of its group."""
    events: list[str] = []
    real_sampled, real_add, real_sample = Engine._sampled, Pending.add, Session.sample

    def sampled(self: Engine, *arguments: Any) -> Any:
        events.append("sampled")
        return real_sampled(self, *arguments)

    def add(self: Pending, groups: Any) -> None:
        events.append("scoring")
        real_add(self, groups)

    def sample(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as listening:
            listening.setattr(Engine, "_sampled", sampled)
            listening.setattr(Pending, "add", add)
            return real_sample(*arguments)

    monkeypatch.setattr(Session, "sample", sample)
    run = grpo.train(
        small(tmp_path, steps=1, system=System(runs=str(tmp_path), threads=1, max_concurrent_completions=rows))
    )
    assert events == (["sampled", "sampled", "scoring"] if rows == 3 else ["sampled", "scoring"]) * batches
    assert [group["group_index"] for group in run.groups(0)] == [0, 1, 2, 3]
