"""`is_correct` is apart from the reward: who says it, where it runs, and what a fault in it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo.config import Dataset, Scoring
from grpo.distributed.world import ALONE
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.tasks import load_task
from grpo.training.preflight import check_golds
from grpo.types import Completion, Problem

RIGHT, WRONG = "(7,12,18,20;2,5,13,17,26)260", "(7,12,18,20;2,5,13,17,26)261"
SUM = Problem("p", "37+85+46+92=", "260")
REWARD = "def long(completions, **columns):\n    return [float(len(text) > 3) for text in completions]\n"
TASK = """
import time
from grpo.types import Problem

class Mine:
    name = "mine"

    def draw(self, step, count, seed):
        return [Problem(f"{step}/{i}", "q", "a") for i in range(count)]

    def heldout(self):
        return [Problem("h", "q", "a")]

    def score(self, problem, text):
        return {"length": 0.1 * len(text)}
"""
VERDICT = """
    def is_correct(self, problem, text):
        if text == "hang":
            time.sleep(60)
        if text == "raise":
            raise ValueError("no")
        return "yes" if text == "word" else text.startswith(problem.answer)
"""


def scored(task: str, reward: str, *texts: str, problem: Problem = SUM) -> list[Completion]:
    with Scorer(load_task(task), reward, Scoring(seconds=1.0, workers=1, most_failures=1.0)) as scorer:
        return scorer.score_texts([(problem, text) for text in texts])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARD)
    Path("plain.py").write_text(TASK)
    Path("judged.py").write_text(TASK + VERDICT)


def test_a_weight_changes_the_reward_and_not_what_is_correct(files: None) -> None:
    for reward, rewards in (("task*0.5", [0.5, 0.0]), ("mine.py:long*0.5", [0.5, 0.5]), ("task, mine.py:long", [2, 1])):
        done = scored("arithmetic", reward, RIGHT, WRONG)
        assert [one.reward for one in done] == rewards
        assert [one.correct for one in done] == [True, False], reward
        assert [one.traits for one in done] == [{"worked": 1.0}] * 2


def test_a_task_without_a_verdict_is_correct_at_its_own_full_reward(files: None) -> None:
    done = scored("plain.py", "", "x" * 10, "x" * 9)
    assert [one.correct for one in done] == [True, False]
    done = scored("plain.py", "task*0.5, mine.py:long", "x" * 10, "x" * 9)
    assert [one.reward for one in done] == pytest.approx([1.5, 1.45])
    assert [one.correct for one in done] == [True, False]


def test_with_another_reward_nobody_says_what_is_correct(files: None) -> None:
    assert [(one.reward, one.correct) for one in scored("plain.py", "mine.py:long", "xxxx", "x")] == [
        (1.0, None),
        (0.0, None),
    ]


@pytest.mark.parametrize(("reward", "rewards"), [("", [0.2, 0.5, 0.0, None]), ("mine.py:long", [0.0, 1.0, 1.0, 1.0])])
def test_a_verdict_of_untrusted_code_cannot_harm_the_run(files: None, reward: str, rewards: list[float | None]) -> None:
    """A verdict that hangs is False, one that raises is None. The rewards of other functions stay."""
    done = scored("judged.py", reward, "ab", "wrong", "hang", "raise", problem=Problem("p", "q", "a"))
    assert [one.reward for one in done] == pytest.approx(rewards)
    assert [one.correct for one in done] == [True, False, False, None]
    assert [one.why.partition(" ")[0] for one in done] == ["", "", "timeout", "failure"]


def test_a_verdict_must_be_a_bool(files: None) -> None:
    with pytest.raises(GrpoError, match="is_correct returned 'yes'; return True, False or None"):
        scored("judged.py", "mine.py:long", "word")


def test_a_task_returns_rewards_by_part(files: None) -> None:
    Path("bare.py").write_text(f"{TASK}\n    def score(self, problem, text):\n        return 1.0\n")
    says = "problem p, completion 0 ('ab'): score returned 1.0; return rewards by part, such as {\"correct\": 1.0}"
    with pytest.raises(GrpoError, match=re.escape(says)):
        scored("bare.py", "", "ab")


def test_a_trait_must_be_a_number(files: None) -> None:
    Path("named.py").write_text(f"{TASK}\n    def traits(self, problem, text):\n        return {{'kind': text}}\n")
    with pytest.raises(GrpoError, match="trait 'kind' is 'ab'; return a number"):
        scored("named.py", "", "ab")


def test_a_gold_that_cannot_be_checked_is_named_with_the_reason(files: None) -> None:
    task = load_task("judged.py")
    with Scorer(task, "", Scoring(workers=1)) as scorer, pytest.raises(GrpoError) as found:
        check_golds(scorer, [Problem("p", "q", "raise")], ALONE)
    says = "the first is problem p, answer 'raise' (failure in task mine: ValueError: no (File "
    assert says in str(found.value)


def test_rows_without_a_gold_have_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "6*7?", "answer": 42}\n' * 2)
    other = tmp_path / "held.jsonl"
    other.write_text('{"question": "2*3?", "answer": 6}\n')

    task = load_task("data", str(path), Dataset(heldout=str(other)))
    with Scorer(task) as scorer:
        known, open_ended = scorer.score_texts([(task.heldout()[0], "6"), (Problem("p", "Why?", ""), "6")])
    assert (known.correct, known.reward) == (True, 1.0)
    assert (open_ended.correct, open_ended.reward) == (None, None)


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic:easy", "addition", "addition:5", "countdown", "gameable"])
def test_built_in_verdicts_agree_with_a_full_reward(name: str) -> None:
    task = load_task(name)
    problems = task.heldout()[:20]
    pairs = [(problem, text) for problem in problems for text in (problem.answer, "", "7", f"({problem.answer})8")]
    for problem, text in pairs:
        assert task.is_correct(problem, text) == (sum(task.score(problem, text).values()) >= 1), (problem, text)
