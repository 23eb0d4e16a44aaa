"""The pages about rewards and the sandbox against the code: flags exist, commands parse, examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo.cli.commands.check import PROG, CheckOptions
from grpo.cli.commands.options import parse as parse_options
from grpo.config import Config
from grpo.config import parse as flags
from grpo.config.schema import parse_train
from grpo.errors import GrpoError
from grpo.record.metrics import METRICS
from grpo.rewards.functions import FunctionReward, Spec, parse
from grpo.rewards.pool.confine import OTHER_PROCESSES, Limits
from grpo.rewards.pool.invoke import Request
from grpo.rewards.scoring import RECENT
from grpo.tasks.arithmetic import Arithmetic
from grpo.tasks.checkers.sandbox import ProgramLimits, require
from grpo.training.inputs import Inputs
from grpo.types import Problem

DOCS = Path(__file__).parents[2] / "docs"
OWN, SANDBOX = (DOCS / "own-rewards.md").read_text(), (DOCS / "sandbox.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_flags_exist_and_commands_parse() -> None:
    named = set(re.findall(r"--([a-z][\w.-]*)", OWN + SANDBOX))
    assert {"reward", "scoring.seconds", "scoring.judge-budget"} <= named
    assert named <= {name.replace("_", "-") for kind in (Config, CheckOptions) for name in flags.leaves(kind)}
    lines = [shlex.split(line, comments=True) for shell in blocks(OWN, "sh") for line in shell.splitlines()]
    assert len(lines) == 10
    for _, command, *arguments in lines:
        config = (
            parse_train(arguments) if command == "train" else parse_options(CheckOptions, arguments, PROG, ("task",))
        )
        assert parse(config.reward)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", OWN + SANDBOX):
        assert target.startswith("https://") or (DOCS / target).is_file(), target


def test_numbers_on_the_pages() -> None:
    limits = ProgramLimits()
    assert f"at most {limits.processes} processes" in SANDBOX
    assert f"at most {limits.memory >> 20} MB of address space" in SANDBOX
    assert f"{limits.disk >> 20} MB |" in SANDBOX
    assert f"{limits.output >> 10} KB" in SANDBOX
    assert f"{limits.seconds:g} seconds by the clock" in SANDBOX
    assert f"limited to {Limits().processes};" in OWN
    assert f"{Limits().processes} for each worker, and {OTHER_PROCESSES} for" in OWN
    assert f"of the last {RECENT} completions" in OWN
    assert {"failures", "timeouts", "crashes"} <= METRICS.keys()


def test_the_functions_shown_agree(tmp_path: Path) -> None:
    code, _ = blocks(OWN, "python")
    (tmp_path / "mine.py").write_text(code)
    for name in ("close", "close_as_in_trl"):
        reward = FunctionReward(Spec(str(tmp_path / "mine.py"), name, 1.0))
        reward.load()
        found = reward(Request(Problem("p", "6*7=", "42"), ("42 ", "41")))
        assert [dict(outcome.parts) for outcome in found] == [{name: 1.0}, {name: 0.0}]


def test_what_is_shown_handed_over_is_taken() -> None:
    _, code = blocks(OWN, "python")
    taken: list[Config] = []

    def train(config: Config, **handed: Any) -> None:
        taken.append(Inputs.take(config, **handed)[0])

    names = {
        "grpo": SimpleNamespace(train=train),
        "config": Config(),
        "close": len,
        "brief": len,
        "datasets": SimpleNamespace(load_dataset=lambda name: {"train": [{"prompt": "6*7=", "answer": "42"}]}),
        "Backwards": Arithmetic,
    }
    exec(code, names)
    assert [config.reward for config in taken] == [
        "python:lambda",
        "python:len, python:len_2*0.2, mine.py:polite*0.1, task",
        "",
    ]
    assert [config.data for config in taken] == ["python:2 rows", "python:1 rows", ""]
    assert taken[2].task == "python:arithmetic"


def test_the_program_shown_runs() -> None:
    try:
        require()
    except GrpoError as why:
        pytest.skip(str(why))
    [code] = blocks(SANDBOX, "python")
    exec(code, {})
