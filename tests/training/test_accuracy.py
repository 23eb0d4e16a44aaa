"""Runs whose correctness is apart from the reward: with `is_correct`, and where it is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.cli.main import main
from grpo.record.store import Run

REWARD = "def brief(completions, **columns):\n    return [0.5 / (1 + len(text)) for text in completions]\n"
TASK = """
from grpo.tasks.arithmetic import Arithmetic

class Sums:
    name, trusted = "sums", True

    def __init__(self):
        self.easy = Arithmetic("easy")

    def draw(self, step, count, seed):
        return self.easy.draw(step, count, seed)

    def heldout(self):
        return self.easy.heldout()

    def score(self, problem, text):
        return self.easy.score(problem, text)
"""
FLAGS = (
    "--model nano --reward mine.py:brief --system.device cpu --steps 2 --prompts-per-step 2 --group-size 4 "
    "--evaluation.problems 20 --evaluation.every 1 --checkpoint-every 1 --scoring.workers 1 --run job"
)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)
    Path("sums.py").write_text(TASK)


def test_accuracy_is_the_tasks_and_not_the_rewards(capsys: pytest.CaptureFixture[str]) -> None:
    """The reward never reaches 1; which answers are right does not depend on it."""
    assert main(["train", "--task", "arithmetic:easy", *FLAGS.split()]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        first = run.evals()[0]
        groups = run.eval_groups(0)
        right = [
            done["text"].rpartition(")")[2] == group["answer"] for group in groups for done in group["completions"]
        ]
        assert first["accuracy"] == sum(right) / 20 > 0
        assert first["reward_mean"] < 0.5
        assert [done["correct"] for group in groups for done in group["completions"]] == right


def test_a_run_that_nobody_can_judge_has_a_reward_and_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--task", "sums.py", *FLAGS.split()]) == 0
    printed = capsys.readouterr().out
    assert "accuracy" not in printed
    assert " right" not in printed
    with Run.open(Path("runs"), "job", readonly=True) as run:
        evals = run.evals()
        assert all(row["accuracy"] is None and row["reward_mean"] > 0 for row in evals)
        assert all("accuracy" not in row for row in run.metrics())
        best = max(evals, key=lambda row: (row["reward_mean"], -row["step"]))["step"]
        assert run.best_step() == best
    assert main(["runs", "job"]) == 0
    assert "reward" in capsys.readouterr().out
    assert main(["eval", "job", "--problems", "5", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert "accuracy" not in row
    assert row["reward_mean"] > 0
    assert main(["eval", "job", "--problems", "5"]) == 0
    assert capsys.readouterr().out.startswith("mean reward 0.")


def test_a_gamed_reward_is_found_where_the_task_says_what_is_correct() -> None:
    """`gameable` accepts any answer within 10: its reward rises while the answers get worse, as `is_correct` sees."""
    Path("honest.py").write_text(
        "from grpo.tasks.gameable import Gameable, exact\n"
        "class Honest(Gameable):\n"
        "    def is_correct(self, problem, text): return exact(problem, text) == 1.0\n"
    )
    flags = (
        "--model nano --task honest.py --system.device cpu --steps 20 --prompts-per-step 8 --group-size 16 --lr 3e-4 "
        "--evaluation.problems 100 --run gamed --quiet"
    )
    assert main(["train", *flags.split()]) == 0
    with Run.open(Path("runs"), "gamed", readonly=True) as run:
        assert "reward_hacking" in {finding["kind"] for finding in run.findings()}
        before, after = run.evals()
    assert after["accuracy"] < before["low"]
