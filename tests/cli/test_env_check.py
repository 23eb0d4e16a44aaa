"""`grpo check --env`: whether episodes repeat, what wrong calls are answered with, rewards, faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo.cli.main import main
from helpers import environments

FILE = environments.__file__
PAGE = Path(__file__).parents[2] / "docs/episodes.md"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["check", "--env", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["sound"] == (code == 0)
    return found


def test_a_class_in_trl_s_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "Count.", "target": target}) + "\n" for target in (1, 2, 3)))
    found = checked(capsys, f"{FILE}:IncrementEnv", "--data", str(rows))
    assert found["tools"] == ["increment", "read"]
    assert sorted((each["observations"][0], each["reward"]) for each in found["episodes"]) == [
        ("Increment the counter by 1.", 1.0),
        ("Increment the counter by 2.", 0.0),
        ("Increment the counter by 3.", 0.0),
    ]
    assert found["differences"] == []
    assert found["wrong_calls"]['{"name": "increment", "arguments": {}}'].startswith("error: increment: 'step' is")
    assert all(len(each["seconds"]) == 4 for each in found["episodes"])


def test_reward_functions_that_read_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, f"{FILE}:EchoEnv", "--reward", f"{FILE}:reward_func*3", "--problems", "1")
    assert [each["reward"] for each in found["episodes"]] == [pytest.approx(3 * 0.01)]
    assert main(["check", "--env", f"{FILE}:EchoEnv", "--reward", "task"]) == 2
    assert "reward task: does not take environments; check it without --env" in capsys.readouterr().err


def test_each_of_several_environments_is_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rows may be sorted by environment. One that need not repeat does not excuse another."""
    rows = tmp_path / "rows.jsonl"
    names = ["a"] * 9 + ["b"]
    lines = [
        json.dumps({"prompt": f"Go {i}.", "environment": name, "fault": "urandom"}) for i, name in enumerate(names)
    ]
    rows.write_text("\n".join(lines))
    env = f"a={FILE}:OnceOnly,b={FILE}:Unruly"
    found = checked(capsys, env, "--data", str(rows), "--problems", "2", code=1)
    assert len(found["episodes"]) == 3
    assert [difference.split(",")[0] for difference in found["differences"]] == [f"problem {rows}:10"]
    rows.write_text('{"prompt": "Go.", "environment": ["a"]}\n')
    assert main(["check", "--env", env, "--data", str(rows)]) == 2
    assert "column environment names ['a']; known: a, b" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["counter.py:Counter", "guess.py:Guess", "agent.py:agent"])
def test_the_examples_of_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, _, _ = name.partition(":")
    [code] = [block for block in PYTHON.findall(PAGE.read_text()) if block.startswith(f"# {file}")]
    Path(file).write_text(code)
    Path("rows.jsonl").write_text('{"prompt": "Play.", "target": 1, "answer": "42"}\n')
    [episode] = checked(capsys, name, "--data", "rows.jsonl", "--text", "")["episodes"]
    assert episode["reward"] == (1.0 if name.startswith("counter") else 0.0)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--env", f"{FILE}:IncrementEnv", "--problems", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("(tools increment, read): 1 episodes, each played twice with the same turns")
    assert "repeats: the same turns gave the same answers and rewards" in printed
    assert any(line.split() == ['[{"name":', '"read",', '"arguments":', "{}}]", "it", "is", "1"] for line in printed)


def test_an_environment_that_does_not_repeat(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "class Shared:\n"
        "    count = 0\n"
        "    def reset(self): ...\n"
        "    def step(self, text):\n"
        "        Shared.count += 1\n"
        "        return f'{Shared.count}', 0.0, Shared.count % 2 == 0\n"
    )
    found = checked(capsys, f"{mine}:Shared", "--problems", "2", code=1)
    assert found["differences"][0] == "problem train/1/0/0, after turn 1: '1', then '5'"


def test_faults_and_rewards_of_turns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "?", "at": "step", "fault": "raise"}) + "\n")
    found = checked(capsys, f"{FILE}:Unruly", "--data", str(rows), code=1)
    [episode] = found["episodes"]
    assert episode["fault"] == "failure"
    assert episode["why"].startswith("ValueError: no such luck (File ")
    rows.write_text(json.dumps({"prompt": "?", "form": "three", "seed": 1}) + "\n")
    [episode] = checked(capsys, f"{FILE}:Guess", "--data", str(rows))["episodes"]
    assert (episode["turns"], episode["observations"], episode["reward"]) == (["1"], ["", "found"], 1.0)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("mine.py", "field episodes.env: 'mine.py' is not a valid environment; write file.py:NAME or module:NAME"),
        (f"{FILE}:Bare", "Bare has neither a method step(text) nor other public methods"),
    ],
)
def test_one_line_errors(capsys: pytest.CaptureFixture[str], env: str, why: str) -> None:
    assert main(["check", "--env", env]) == 2
    printed = capsys.readouterr().err.strip()
    assert why in printed
    assert "\n" not in printed
