"""Small programming problems. The checker runs the answer in a sandbox and compares its results.

The answer is a Python program: the last fenced block, or the whole text where there is none.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.checkers.last_result import keep_last_result
from grpo.tasks.checkers.sandbox import ProgramLimits, require, run_program
from grpo.types import Problem, chat

LIMITS = ProgramLimits(seconds=2.0)
HELDOUT_ONE_IN = 4
CALLS = """\
import contextlib, json, sys
names = {{"__name__": "program"}}
with contextlib.redirect_stdout(sys.stderr):
    exec(compile({program!r}, "program.py", "exec"), names)
    results = [names[{function!r}](*arguments) for arguments in json.loads(sys.stdin.read())]
print(json.dumps(results))
"""


class Code:
    """`code`: functions and programs of a few lines. The reward is 1 where every test passes, else 0.

    >>> program_in("So:\\n```python\\nprint(1)\\n```\\nor better\\n```\\nprint(2)\\n```")
    'print(2)\\n'
    """

    name = "code"

    def __init__(self, variant: str = ""):
        if variant:
            raise GrpoError(f"field task: code has no variants; leave out :{variant}")
        require()

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        rng = random.Random(f"code/{seed}/{step}")
        chosen = [rng.choice(_problems()[1]) for _ in range(count)]
        return [_problem(f"train/{step}/{i}/{row['name']}", row) for i, row in enumerate(chosen)]

    def heldout(self) -> list[Problem]:
        return [_problem(f"heldout/{row['name']}", row) for row in _problems()[0]]

    def recognise(self, prompt: str) -> Problem | None:
        known = {_problem("", row).prompt: row for rows in _problems() for row in rows}
        return _problem(f"typed/{known[prompt]['name']}", known[prompt]) if prompt in known else None

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": float(self.is_correct(problem, text))}

    @keep_last_result
    def is_correct(self, problem: Problem, text: str) -> bool:
        program, tests, function = program_in(text), problem.columns["tests"], problem.columns["function"]
        return passes_calls(program, function, tests) if function else passes_runs(program, tests)

    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        return {"fenced": float("```" in text)}


def program_in(text: str) -> str:
    """The last fenced block; the whole text where there is none."""
    blocks = re.findall(r"```[a-zA-Z0-9]*[ ]*\n(.*?)```", text, re.DOTALL)
    return blocks[-1] if blocks else text


def passes_calls(program: str, function: str, tests: list[Any]) -> bool:
    """Whether all calls, made in one run, return the expected values. The program's own output is ignored."""
    arguments, expected = [test[0] for test in tests], [test[1] for test in tests]
    result = run_program(CALLS.format(program=program, function=function), json.dumps(arguments), LIMITS)
    return result.status == 0 and result.output == json.dumps(expected) + "\n"


def passes_runs(program: str, tests: list[Any]) -> bool:
    """Whether every test passes, each in its own run. Spaces at the ends of lines do not count."""
    for stdin, expected in tests:
        result = run_program(program, stdin, LIMITS)
        if result.status != 0 or _lines(result.output) != _lines(expected):
            return False
    return True


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _problem(id: str, row: Mapping[str, Any]) -> Problem:
    prompt = f"{row['question']} Answer with Python code in one block fenced by ```."
    columns = {"tests": row["tests"], "function": row.get("function", "")}
    return Problem(id, prompt, row["gold"], messages=chat(prompt), columns=columns)


@cache
def _problems() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The held-out problems, and the training problems."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["problem"]
    return rows[::HELDOUT_ONE_IN], [row for i, row in enumerate(rows) if i % HELDOUT_ONE_IN]
