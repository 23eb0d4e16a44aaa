"""docs/tasks.md and docs/rewards.md against the code: the task runs, flags and names exist, tables are complete."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from grpo.cli.commands.check import CheckOptions
from grpo.cli.main import main
from grpo.cli.trial_answers import FORMS
from grpo.config import Config, Dataset, Scoring, SftConfig
from grpo.config import parse as flags
from grpo.config.schema import parse_sft, parse_train
from grpo.rewards import Scorer
from grpo.tasks import TASKS, load_task
from grpo.types import Completion, Group, Problem

DOCS = Path(__file__).parents[2] / "docs"
TASKS_PAGE = (DOCS / "tasks.md").read_text()
REWARDS_PAGE = (DOCS / "rewards.md").read_text()


def python_block(page: str) -> str:
    [block] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return block


def test_the_task_shown_is_short_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = python_block(TASKS_PAGE)
    assert len(block.splitlines()) <= 25
    (tmp_path / "mytask.py").write_text(block)
    task = load_task(str(tmp_path / "mytask.py"))
    drawn = task.draw(3, 16, seed=1)
    assert drawn == task.draw(3, 16, seed=1) != task.draw(4, 16, seed=1)
    assert not {problem.prompt for problem in task.heldout()} & {problem.prompt for problem in drawn}
    assert main(["check", str(tmp_path / "mytask.py"), "--problems", "20"]) == 0
    assert "backwards: 8 of 8 golds pass their own check" in capsys.readouterr().out


def test_the_reward_shown_returns_its_parts() -> None:
    names: dict = {}
    exec(python_block(REWARDS_PAGE), names)
    parts = names["score"](Problem("p", "q", "42"), "<think>6*7</think><answer>42</answer>")
    assert parts == {"correct": 1.0, "tags": 0.2, "short": 0.1}


def test_the_reward_command_shown_rewards_tags_too() -> None:
    [command] = re.findall(r"^grpo train (.*--reward .*)$", REWARDS_PAGE, re.MULTILINE)
    config = parse_train(shlex.split(command))
    nothing = np.zeros(0)
    texts = ("42", "<think>a</think><answer>42</answer>")
    completions = tuple(Completion(text, nothing, nothing, "stop") for text in texts)
    with Scorer(load_task("arithmetic"), config.reward, Scoring(workers=1)) as scorer:
        [scored] = scorer.score([Group(Problem("p", "6*7=", "42"), nothing, completions, 0)])
    assert [completion.reward for completion in scored.completions] == [1.0, 0.2]


@pytest.mark.parametrize("page", [TASKS_PAGE, REWARDS_PAGE], ids=["tasks", "rewards"])
def test_flags_and_names_exist(page: str) -> None:
    known = {*flags.leaves(Config), *flags.leaves(SftConfig), *flags.leaves(CheckOptions)}
    for name in re.findall(r"(?<![\w-])--([a-z][\w.-]*)", page):
        path = name.replace("-", "_").replace(".no_", ".")
        assert path in known, name
    for module, name in re.findall(r"`(grpo(?:\.\w+)+):(\w+)`", page):
        assert callable(getattr(importlib.import_module(module), name))
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page):
        assert (DOCS / target).is_file(), target


def test_every_task_and_setting_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_0-9]+)(?::\w+)?[`,]", TASKS_PAGE))
    assert set(TASKS) <= documented
    settings = {f"dataset.{name}" for name in flags.leaves(Dataset)}
    assert settings <= {name.replace("-", "_") for name in re.findall(r"--(dataset\.[\w-]+)", TASKS_PAGE)}


def test_commands_shown_parse() -> None:
    commands = re.findall(r"^grpo train (.*?)(?:\s+#.*)?$", TASKS_PAGE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        parse_train(shlex.split(command))
    [command] = re.findall(r"^grpo sft (.*)$", TASKS_PAGE, re.MULTILINE)
    parse_sft(shlex.split(command))


def test_the_table_of_forms_is_complete() -> None:
    rows = re.findall(r"^\| `.+` \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", REWARDS_PAGE, re.MULTILINE)
    assert len(rows) == len(FORMS)
    assert {row[0] for row in rows} == {"100.0"}
