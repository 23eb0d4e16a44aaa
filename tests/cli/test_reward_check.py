"""`grpo check --reward`: what each kind of answer earns, which calls fail, whether there is a signal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.main import main
from grpo.cli.reward_check import RewardFindings, Values, model_findings, trial_answers
from grpo.types import Completion, Group, Problem
from helpers.runs import small

MINE = """
import time

def close(problem, text):
    return float(text.strip() == problem.answer)

def by_ids(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]

def same(completions, **_):
    return [0.5] * len(completions)

def silent(problem, text):
    return None

def fails(completions, level, **_):
    return [1 / len(text) for text in completions]

def hangs(problem, text):
    time.sleep(3600)

def as_in_trl(completions, ground_truth, **_):
    return [float(done[0]["content"] == gold) for done, gold in zip(completions, ground_truth)]

def tagged(completions, **_):
    return [float(text.startswith("<think>")) for text in completions]

def rare(problem, text):
    return 1.0 if text == problem.answer else None

def huge(problem, text):
    return 1e20
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a), "level": "easy"} for a in range(10, 60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in rows))


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["check", *arguments, "--json", "--scoring.workers", "1"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["sound"] == (code == 0)
    return found


def test_what_each_kind_of_answer_earns(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, "--data", "rows.jsonl", "--reward", "mine.py:close", "--text", "wrong\\nend")
    assert (found["reward"], found["problems"]) == ("mine.py:close", 32)
    one = {"count": 32, "scored": 32}
    assert found["by_answer"]["gold"] == {**one, "low": 1.0, "mean": 1.0, "high": 1.0}
    assert found["by_answer"]["gold, sentence"] == {**one, "low": 0.0, "mean": 0.0, "high": 0.0}
    assert found["by_answer"]["--text"] == {**one, "low": 0.0, "mean": 0.0, "high": 0.0}
    assert found["by_answer"]["junk"]["high"] == 0.0
    assert (found["faults"], found["constant"]) == ({}, None)
    assert found["samples"][0] == {
        **{"kind": "gold", "problem": "rows.jsonl:1", "text": "20"},
        **{"reward": 1.0, "parts": {"close": 1.0}},
    }
    assert main(["check", "--data", "rows.jsonl", "--reward", "mine.py:close", "--problems", "4"]) == 0
    printed = capsys.readouterr().out
    assert "mine.py:close on data: " in printed
    assert "  gold                                   1         1         1   4 of 4\n" in printed
    assert "CONSTANT" not in printed


@pytest.mark.parametrize("reward", [(), ("--reward", "task")])
def test_a_text_is_scored_by_the_task_too(reward: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, "--data", "rows.jsonl", *reward, "--text", "22 or 20", "--problems", "2")
    assert found["reward"] == "task"
    assert found["by_answer"]["--text"] == {"count": 2, "scored": 2, "low": 0.0, "mean": 0.5, "high": 1.0}


def test_prompts_without_golds(capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes of a text stand for its tokens until a model gives them."""
    found = checked(capsys, "--data", "prompts.jsonl", "--reward", "mine.py:by_ids", "--text", "four")
    assert not any("gold" in kind for kind in found["by_answer"])
    assert found["by_answer"]["--text"]["mean"] == 4.0
    assert found["by_answer"]["the prompt twenty times"]["mean"] == 20 * 6 + 19
    assert found["made_up_tokens"]
    named = checked(
        capsys, "--data", "prompts.jsonl", "--reward", "mine.py:by_ids", "--model", "nano", "--problems", "4",
        "--model-problems", "3", "--group-size", "4", "--max-new-tokens", "8",
    )  # fmt: skip
    assert not named["made_up_tokens"]
    row = named["model"]
    assert (row["groups"], row["group_size"], row["count"], row["scored"]) == (3, 4, 12, 12)
    assert 1 <= row["low"] <= row["mean"] <= row["high"] <= 8
    assert 0 <= row["groups_with_signal"] <= 3


def test_a_column_that_holds_the_answers_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """TRL's shape: conversations, and golds in a column that only the reward knows."""
    rows = [{"prompt": [{"role": "user", "content": f"{a}+1="}], "ground_truth": str(a + 1)} for a in range(10, 60)]
    Path("trl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = checked(capsys, "--data", "trl.jsonl", "--reward", "mine.py:as_in_trl", "--problems", "4")
    assert found["by_answer"]["column ground_truth"]["mean"] == 1.0
    assert found["by_answer"]["junk"]["high"] == 0.0


def test_a_reward_that_is_constant_only_on_the_trial_answers(capsys: pytest.CaptureFixture[str]) -> None:
    tagged = ("--data", "prompts.jsonl", "--reward", "mine.py:tagged", "--problems", "4")
    assert checked(capsys, *tagged, code=1)["constant"] == 0.0
    assert checked(capsys, *tagged, "--text", "<think>x</think>")["constant"] is None
    row = {"low": 0.0, "high": 1.0}
    found = RewardFindings("f", "data", 1, 1, {}, {}, {}, 0.0, 0.0, [], False, row)
    assert found.sound, "the model's completions earn different rewards"
    assert not RewardFindings(**{**vars(found), "model": {"low": 0.0, "high": 0.0}}).sound
    assert not RewardFindings(**{**vars(found), "model": {}}).sound


def test_a_constant_reward_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(capsys, "--data", "rows.jsonl", "--reward", "mine.py:same", code=1)["constant"] == 0.5
    assert main(["check", "--data", "rows.jsonl", "--reward", "mine.py:same"]) == 1
    assert "CONSTANT every answer earns 0.5: there is nothing to learn from" in capsys.readouterr().out


def test_a_constant_reward_of_few_answers_tells_how_many_it_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--data", "rows.jsonl", "--reward", "mine.py:rare", "--problems", "4"]) == 1
    assert re.search(r"CONSTANT every answer it scored \(4 of \d\d\) earns 1: there is", capsys.readouterr().out)


def test_a_reward_that_scores_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--data", "rows.jsonl", "--reward", "mine.py:silent"]) == 1
    assert "UNSCORED the reward returned None for every answer" in capsys.readouterr().out


def test_faults_are_counted_with_their_first_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, "--data", "rows.jsonl", "--reward", "mine.py:fails", "--problems", "3", code=1)
    assert found["faults"] == {"failure in reward mine.py:fails": 3}  # the empty text of each problem
    assert found["by_answer"]["junk"]["scored"] == found["by_answer"]["junk"]["count"] - 3
    [reason] = found["first_faults"].values()
    assert reason.startswith("ZeroDivisionError: ")
    assert 'mine.py", line' in reason


def test_a_reward_that_always_hangs_is_tried_on_one_problem(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, "--data", "rows.jsonl", "--reward", "mine.py:hangs", "--scoring.seconds", "0.05", code=1)
    assert found["problems"] == 1
    assert found["faults"] == {"timeout in reward mine.py:hangs": found["answers"]}
    assert found["constant"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--data rows.jsonl --reward mine.py:huge", "reward mine.py:huge, problem rows.jsonl:1, completion 0 ('20'): "),
        ("--data prompts.jsonl --reward mine.py:fails", "reward mine.py:fails: takes 'level', which is neither "),
        ("--data rows.jsonl --reward absent.py:f", "reward absent.py:f: file absent.py does not exist"),
        ("--data prompts.jsonl --reward task", ""),
    ],
)
def test_what_training_refuses_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    assert main(["check", *arguments.split()]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"grpo: {says}")
    settings = dict(zip(*[iter(arguments.replace("--", "").split())] * 2, strict=True))
    with pytest.raises(grpo.GrpoError) as caught:
        grpo.train(small(tmp_path, steps=1, **settings))
    told = f"grpo: {caught.value}\n"
    if "huge" in arguments:  # training reaches the value in its first evaluation, on another completion
        told, line = told.partition("): ")[2], line.partition("): ")[2]
    assert told == line


def test_trial_answers_are_distinct_and_keep_their_first_kind() -> None:
    problems = [Problem("a", "1+1=", "2"), Problem("b", "2+2=", "")]
    found = trial_answers(problems, 1, "2")
    assert found["a"][0] == ("gold", "2")
    assert "--text" not in [kind for kind, _ in found["a"]], "it is the gold"
    assert ("--text", "2") in found["b"]
    for answers in found.values():
        assert len({text for _, text in answers}) == len(answers)


def test_the_spread_of_sampled_groups() -> None:
    """Two groups: (1, 0) has signal, (2, 2, unscored) has none. Mean 5/4, population std √(11)/4."""

    def group(*rewards: float | None) -> Group:
        done = [Completion("", [], [], "stop", reward=reward) for reward in rewards]  # type: ignore[arg-type]
        return Group(Problem("p", "", ""), [], tuple(done), 0)  # type: ignore[arg-type]

    row = model_findings("nano", [group(1.0, 0.0), group(2.0, 2.0, None)])
    assert (row["mean"], row["low"], row["high"], row["scored"], row["count"]) == (1.25, 0.0, 2.0, 4, 5)
    assert row["std"] == pytest.approx(11**0.5 / 4)
    assert row["groups_with_signal"] == 1
    assert Values.of([]) == Values(0, 0, None, None, None)
