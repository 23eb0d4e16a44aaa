"""Rows and tasks handed over as Python objects."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks import load_task, take_task
from grpo.tasks.handed_over import name_of_rows, take_rows
from grpo.tasks.rows import Source

ROWS = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(60)]


def places(data: Any, **settings: Any) -> tuple[set[str], set[str]]:
    rows = take_rows(data)
    task = load_task("data", name_of_rows(rows), Dataset(**settings), rows)
    held_out = {problem.place for problem in task.heldout()}
    return {problem.place for problem in task.problems()} - held_out, held_out  # type: ignore[attr-defined]


def test_rows_are_named_by_their_index() -> None:
    train, held_out = places(ROWS)
    assert train | held_out == {f"data[{i}]" for i in range(60)}
    assert train
    assert held_out


def test_a_dataset_and_its_splits() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    assert places(table) == places(ROWS)
    splits = datasets.DatasetDict({"train": table, "test": datasets.Dataset.from_list(ROWS[:3])})
    train, held_out = places(splits, heldout="test")
    assert len(train) == 60
    assert held_out == {"data['test'][0]", "data['test'][1]", "data['test'][2]"}


def test_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    assert places(pandas.DataFrame(ROWS)) == places(ROWS)
    turns = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    of_parquet = pandas.DataFrame({"messages": [np.array(turns, dtype=object)], "n": [7]})
    assert take_rows(of_parquet) == {"": [{"messages": turns, "n": 7}]}
    gaps = pandas.DataFrame({"prompt": ["1+1=", "1+2="], "hint": ["two", None], "level": [1, None], "n": [7, 8]})
    assert take_rows(gaps)[""][1] == {"prompt": "1+2=", "hint": None, "level": None, "n": 8}
    with pytest.raises(GrpoError, match=r"field data: the data frame has several columns of one name"):
        take_rows(pandas.DataFrame([["1+1=", 2, 3]], columns=["prompt", "answer", "answer"]))


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (np.int64(7), "7"),
        (np.float32(7.1), "7.1"),
        (np.bool_(True), "yes"),
        (np.array([7, 8]), "7"),
        (torch.tensor(7), "7"),
        (Decimal("7.50"), "7.50"),
        ((None, float("nan"), "seven"), "seven"),
        ([["7"], "8"], ""),
        ({"value": 7}, ""),
    ],
)
def test_golds_are_text_or_numbers_of_any_library(gold: Any, text: str) -> None:
    rows = take_rows([{**row, "answer": gold} for row in ROWS])
    task = load_task("data", name_of_rows(rows), rows=rows)
    assert {problem.answer for problem in task.heldout()} == {text}


def test_a_missing_value_is_not_an_accepted_answer() -> None:
    rows = take_rows([{**row, "answer": ["nothing", None, float("nan"), np.int64(0)]} for row in ROWS])
    task = load_task("data", name_of_rows(rows), rows=rows)
    problem = task.heldout()[0]
    right = [text for text in ("nothing", "None", "nan", "0") if task.score(problem, text)["correct"]]
    assert right == ["nothing", "0"]


@pytest.mark.parametrize(
    ("data", "settings", "without"),
    [
        (ROWS, {"split": "test", "subset": "main"}, ["split", "subset"]),
        (ROWS, {}, []),
        ({"test": ROWS}, {"split": "test"}, []),
        (ROWS, {"split": "test", "heldout": "owner/name"}, []),
    ],
)
def test_settings_of_splits_without_effect_are_reported(
    data: Any, settings: dict[str, str], without: list[str]
) -> None:
    source = Source("rows", Dataset(**settings), take_rows(data))
    assert source.notes == [f"dataset.{name} has no effect: rows has no {name}s; all rows are read" for name in without]


def test_a_share_beside_held_out_rows_is_reported() -> None:
    source = Source("rows", Dataset(heldout="other.jsonl", heldout_share=0.5), take_rows(ROWS))
    assert source.notes == ["dataset.heldout_share has no effect: dataset.heldout names the held-out rows"]


@pytest.mark.parametrize(
    ("data", "settings", "says"),
    [
        ([], {}, "field data: data has no rows"),
        (7, {}, "field data: data is of type int; give a list of dicts"),
        ([ROWS[0], "6*7="], {}, r"field data: data\[1\] is of type str; give a dict"),
        ({"train": ROWS}, {"split": "valid"}, "field dataset.split: data has no split 'valid'; it has train"),
        (ROWS, {"heldout": "test"}, "field dataset.heldout: 'test' is a split, but python:60 rows is a list without"),
        ([{"ask": "6*7="}], {}, "field dataset.prompt: no column named prompt, .* in data, which has ask"),
        ([{"prompt": "", "answer": 1}], {}, r'data\[0\]: column "prompt"'),
    ],
)
def test_what_is_not_rows_is_refused(data: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(GrpoError, match=says):
        places(data, **settings)


def test_rows_are_not_sent_to_the_workers() -> None:
    rows = take_rows([*ROWS, {"prompt": "needle?", "answer": "needle"}])
    task = load_task("data", name_of_rows(rows), Dataset(), rows)
    assert b"needle" not in pickle.dumps(task)


def test_names_of_another_process_are_refused() -> None:
    with pytest.raises(
        GrpoError, match=r"field data: 60 rows came from Python and cannot be stored in .*; name a file"
    ):
        load_task("data", "python:60 rows")
    with pytest.raises(GrpoError, match=r"field task: Mine came from Python and cannot be stored in .*; name another"):
        load_task("python:Mine")


class Rowed:
    name = "rowed"

    def __init__(self, source: Source):
        self.rows = source.read("train")

    def draw(self, step: int, count: int, seed: int) -> list[Any]:
        return []

    heldout = score = draw


def test_a_class_takes_the_rows_and_an_object_has_its_own() -> None:
    rows = take_rows(ROWS)
    task = take_task(Rowed, Source("python:60 rows", rows=rows))
    assert len(task.rows) == 60  # type: ignore[attr-defined]
    assert take_task(task, Source()) is task
    with pytest.raises(GrpoError, match="field data: the task handed over makes its own problems"):
        take_task(task, Source("python:60 rows", rows=rows))
    with pytest.raises(GrpoError, match="field task: an object of type int lacks name, draw, heldout, score"):
        take_task(3, Source())
