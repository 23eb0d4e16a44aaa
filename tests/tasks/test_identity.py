"""A problem is known by the content of its row: where the row comes from changes neither its id nor its completions."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks import Task, load_task
from grpo.tasks.handed_over import name_of_rows, take_rows
from grpo.tasks.row_hash import canonical, row_ids
from grpo.types import Problem

ROWS: list[dict[str, Any]] = [{"prompt": f"{a}+{a + 1}+11=", "answer": str(2 * a + 12)} for a in range(10, 50)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def handed_over(rows: list[dict[str, Any]], **settings: Any) -> Task:
    taken = take_rows(rows)
    return load_task("data", name_of_rows(taken), Dataset(**settings), taken)


def completions(problems: list[Problem]) -> list[list[str]]:
    sampling = Sampling(seed=1, temperature=1.0, max_new_tokens=12, step=0, purpose="train")
    groups = Engine(load_policy("nano")).sample(problems, 4, sampling)
    return [[done.text for done in group.completions] for group in groups]


def test_the_same_rows_by_any_path_give_the_same_completions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = write(tmp_path / "rows.jsonl", ROWS)
    tasks = [load_task("data", "rows.jsonl"), load_task("data", absolute), handed_over(ROWS)]
    drawn = [task.draw(0, 4, seed=1) for task in tasks]
    assert [problem.id for problem in drawn[0]] == [problem.id for problem in drawn[1]]
    assert drawn[0][0].place.startswith("rows.jsonl:")
    assert drawn[1][0].place.startswith(f"{absolute}:")
    assert drawn[2][0].place.startswith("data[")
    first = completions(drawn[0])
    assert first == completions(drawn[1]) == completions(drawn[2])


def test_two_equal_rows_are_two_problems_with_completions_of_their_own() -> None:
    task = handed_over([ROWS[0], *ROWS, {"answer": ROWS[0]["answer"], "prompt": ROWS[0]["prompt"]}])
    equal = [problem for problem in task.problems() if problem.prompt == ROWS[0]["prompt"]]  # type: ignore[attr-defined]
    key = equal[0].id
    assert [problem.id for problem in equal] == [key, f"{key}-2", f"{key}-3"]
    texts = completions(equal)
    assert texts[0] != texts[1] != texts[2] != texts[0]


def test_every_column_counts_and_neither_order_nor_settings_do() -> None:
    def key(**columns: Any) -> str:
        return row_ids([("", columns)])[0]

    assert key(prompt="6*7=", level=1) == key(level=1, prompt="6*7=")
    assert key(prompt="6*7=", level=1) != key(prompt="6*7=", level=2) != key(prompt="6*7=")
    turns = [{"role": "user", "content": "6*7="}], [{"role": "system", "content": "6*7="}]
    assert key(prompt=turns[0]) != key(prompt=turns[1])
    ids = [[p.id for p in handed_over(ROWS, **settings).draw(0, 4, 1)] for settings in ({}, {"chat": False})]
    assert ids[0] == ids[1]


def test_values_are_hashed_the_same_in_every_process() -> None:
    code = (
        "import datetime, decimal; from grpo.tasks.row_hash import canonical; "
        "values = [datetime.date(2026, 1, 2), decimal.Decimal('1.5'), b'x', {'b', 'a', 'c'}, {'z': 1, 'a': None}]; "
        "print(canonical(values, '').decode())"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    values = [datetime.date(2026, 1, 2), Decimal("1.5"), b"x", {"b", "a", "c"}, {"z": 1, "a": None}]
    assert canonical(values, "").decode() == again
    assert canonical(np.array([1, 2]), "") == canonical([1, 2], "") == canonical((1, 2), "")
    assert canonical(b"x", "") != canonical("x", "")


@pytest.mark.parametrize("value", [lambda: 0, {1: 1, "a": 2}, {(1, 2): 3}], ids=["a function", "keys", "a tuple key"])
def test_a_value_that_cannot_be_hashed_is_told_in_one_line(value: Any) -> None:
    with pytest.raises(GrpoError, match=r"^data\[0\]: has a value that cannot be stored .*; use text, numbers"):
        handed_over([{"prompt": "6*7=", "answer": "42", "extra": value}, *ROWS])
