"""`grpo.train` with objects in place of the config's texts."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.main import main
from grpo.config import Episodes, System
from grpo.errors import GrpoError
from grpo.rewards.handed_over import take_rewards
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.bytecode import code_text
from grpo.training.inputs import Inputs
from helpers.runs import small

DATA = [{"prompt": f"{a}+{a + 1}+{a + 2}=", "answer": 3 * a + 3} for a in range(10, 90)]


def rewards_of(run: grpo.Run) -> list[tuple[str, float]]:
    rows = run.completions(step=0)
    assert len(rows) == 16
    return [(row["text"], row["reward"]) for row in rows]


def test_a_lambda_and_a_list_of_dicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with grpo.train(
        small(tmp_path, steps=1, run="handed"), reward=lambda problem, text: len(text) / 8, data=DATA
    ) as run:
        assert (run.config["reward"], run.config["data"]) == ("python:lambda", "python:80 rows")
        assert run.config["task"] == "data"
        assert all(reward == len(text) / 8 for text, reward in rewards_of(run))
    assert main(["eval", "handed", "--runs", str(tmp_path)]) == 2
    assert "field data: 80 rows came from Python and cannot be stored in a record" in capsys.readouterr().err
    assert main(["runs", "handed", "--runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "grpo export handed" in printed
    assert "grpo sample" not in printed, "it needs the rows"


def test_a_stopped_run_of_python_objects_is_resumed_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stop(grpo.Callback):
        def on_step(self, step: int, metrics: Any, groups: Any) -> None:
            self.request_stop()

    grpo.train(small(tmp_path, run="mine"), data=DATA, callbacks=[Stop()]).close()
    assert main(["runs", "mine", "--runs", str(tmp_path)]) == 0
    resume = 'resume     grpo.train(grpo.Config(…, run="mine", resume=True), …) with the same Python objects'
    assert resume in capsys.readouterr().out


def test_held_out_rows_are_handed_over_like_the_others(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    others = [{"prompt": [{"role": "user", "content": "1+2+3="}]}, {"prompt": [{"role": "user", "content": "4+5+6="}]}]
    table = datasets.Dataset.from_list(others)
    kept = []
    for eval_data in (others, table, datasets.DatasetDict({"test": table}), {"test": others}):
        config = small(tmp_path, steps=1, max_new_tokens=8)
        with grpo.train(config, reward=lambda problem, text: len(text) / 8, data=DATA, eval_data=eval_data) as run:
            assert run.config["dataset"]["heldout"] == "python:2 rows"
            [before, _] = run.summary()["eval"]
            assert before.get("accuracy") is None
            kept.append((before["reward_mean"], run.probes()[0]["prompt"]))
    assert kept == [kept[0]] * 4, "the same rows and completions"
    assert kept[0][1] in ("1+2+3=", "4+5+6=")


@pytest.mark.parametrize(
    ("eval_data", "handed", "says"),
    [
        ({"a": DATA, "b": DATA}, {}, "field eval_data: has the splits a, b; hand over one of them, such as data"),
        ([], {}, "field eval_data: eval_data has no rows"),
        ([7], {}, r"field eval_data: eval_data\[0\] is of type int; give a dict"),
        ("none.jsonl", {}, r"field dataset\.heldout: no file none\.jsonl"),
        (DATA, {"task": "arithmetic", "data": None}, "field eval_data: the task arithmetic makes its own problems"),
        ("rows.jsonl", {"task": "arithmetic", "data": None}, r"field dataset\.heldout: the task arithmetic makes"),
        (DATA, {"task": Arithmetic(), "data": None}, "field eval_data: the task handed over makes its own problems"),
    ],
)
def test_held_out_rows_that_cannot_be_used_are_refused(
    tmp_path: Path, eval_data: Any, handed: dict[str, Any], says: str
) -> None:
    with pytest.raises(GrpoError, match=f"^{says}"):
        grpo.train(small(tmp_path), **{"data": DATA, "eval_data": eval_data, **handed})


def test_rows_without_answers_need_a_reward_of_ones_own(tmp_path: Path) -> None:
    asked = [{"prompt": row["prompt"]} for row in DATA]
    with pytest.raises(
        GrpoError, match=r"^field dataset\.answer: no column named .* in data, which has prompt; .*reward="
    ):
        grpo.train(small(tmp_path), data=asked)
    with grpo.train(small(tmp_path, steps=1), data=asked, reward=lambda problem, text: len(text) / 8) as run:
        assert all(row["correct"] is None for row in run.completions(step=0))
        assert "accuracy" not in run.metrics()[0]


def test_too_few_rows_are_refused_with_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(GrpoError, match=r"leaves no held-out rows of the 1; .* pass others as eval_data"):
        grpo.train(small(tmp_path), data=DATA[:1])


def test_a_config_of_another_kind_is_refused() -> None:
    others = {"a table": {"model": "nano"}, "a SftConfig": grpo.SftConfig(model="nano", data="rows.jsonl")}
    for got, config in others.items():
        with pytest.raises(GrpoError, match=rf"^field config: expected grpo\.Config\(…\); got {got}$"):
            grpo.train(config, data=DATA)


def test_a_task_object(tmp_path: Path) -> None:
    class Sevens(Arithmetic):
        trusted = False

        def score(self, problem: grpo.Problem, text: str) -> dict[str, float | None]:
            return {"sevens": 1.0 + text.count("7")}

        def is_correct(self, problem: grpo.Problem, text: str) -> bool:
            return True

    with grpo.train(small(tmp_path, steps=1), task=Sevens("easy")) as run:
        assert run.config["task"] == "python:arithmetic:easy"
        assert all(reward == 1 + text.count("7") for text, reward in rewards_of(run))


def by_length(per: float) -> Callable[[grpo.Problem, str], float]:
    return lambda problem, text: len(text) / per


def test_a_resume_must_be_handed_the_same(tmp_path: Path) -> None:
    config = small(tmp_path, steps=2, run="mine", resume=True)
    with grpo.train(config, reward=by_length(8), data=DATA) as run:
        assert run.last_step() == 1
    longer = small(tmp_path, steps=3, run="mine", resume=True)
    with pytest.raises(grpo.GrpoError, match="mine began with other inputs: reward code: python:lambda changed"):
        grpo.train(longer, reward=by_length(9), data=DATA)
    with pytest.raises(grpo.GrpoError, match="data was 'python:80 rows', is 'python:79 rows'"):
        grpo.train(longer, reward=by_length(8), data=DATA[1:])
    with grpo.train(longer, reward=by_length(8), data=DATA) as run:
        assert run.last_step() == 2


def test_a_resume_may_name_the_same_rows_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another spelling or place of the path, or as objects; other rows are refused."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(row) + "\n" for row in DATA]
    Path("rows.jsonl").write_text("".join(lines[:60]))
    Path("held.jsonl").write_text("".join(lines[60:]))

    def resumed(steps: int, file: str, heldout: str, **handed: Any) -> int | None:
        dataset = {"heldout": heldout}
        config = small(tmp_path / "runs", steps=steps, run="mine", resume=True, data=file, dataset=dataset)
        with grpo.train(config, **handed) as run:
            assert run.findings() == []
            return run.last_step()

    assert resumed(1, "rows.jsonl", "held.jsonl") == 0
    Path("other").mkdir()
    shutil.copy("rows.jsonl", "other/copy.jsonl")
    shutil.copy("held.jsonl", "other/held.jsonl")
    assert resumed(2, "./rows.jsonl", "./held.jsonl") == 1
    assert resumed(3, "other/copy.jsonl", str(tmp_path / "other" / "held.jsonl")) == 2
    assert resumed(4, "", "", data=DATA[:60], eval_data=DATA[60:]) == 3
    Path("other/copy.jsonl").write_text("".join(lines[1:60]))
    with pytest.raises(
        GrpoError,
        match=r"data was 'python:60 rows', is 'other/copy.jsonl'; .*; data: column answer changed, .*rows changed;",
    ):
        resumed(5, "other/copy.jsonl", "held.jsonl")
    Path("other/held.jsonl").write_text("".join(lines[61:]))
    with pytest.raises(GrpoError, match=r"data: held-out column answer changed"):
        resumed(5, "rows.jsonl", "other/held.jsonl")


@pytest.mark.parametrize(
    ("settings", "handed", "field"),
    [
        ({"reward": "task"}, {"reward": by_length(8)}, "reward"),
        ({"data": "rows.jsonl"}, {"data": DATA}, "data"),
        ({"task": "arithmetic"}, {"task": Arithmetic()}, "task"),
    ],
)
def test_both_are_refused(tmp_path: Path, settings: dict[str, Any], handed: dict[str, Any], field: str) -> None:
    with pytest.raises(grpo.GrpoError, match=f"^field {field}: set in the config and handed over; give one of them$"):
        grpo.train(small(tmp_path, **settings), **handed)


def test_texts_mean_what_they_mean_in_the_config(tmp_path: Path) -> None:
    with grpo.train(small(tmp_path, steps=1), task="arithmetic:easy", reward="task") as run:
        assert (run.config["task"], run.config["reward"]) == ("arithmetic:easy", "task")


def test_sft_takes_rows(tmp_path: Path) -> None:
    config = grpo.SftConfig(model="nano", steps=1, batch_size=4, system=System(runs=str(tmp_path), threads=1))
    with grpo.sft(config, data=DATA) as run:
        assert (run.config["data"], run.last_step()) == ("python:80 rows", 0)


HELP = 3


def helper(text: str) -> int:
    return len(text) + HELP


def test_code_is_described_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(problem: grpo.Problem, text: str) -> float:
        return helper(text) * (text in {"a", "b", "c"})

    before = code_text(counts)
    assert code_text(counts) == before
    assert code_text(by_length(8)) == code_text(by_length(8))
    assert code_text(by_length(8)) != code_text(by_length(9)), "values of the closure"
    monkeypatch.setattr(f"{__name__}.HELP", 4)
    assert code_text(counts) != before, "globals of a function that it calls"


def test_many_helpers_are_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 functions that each call the next two have as many paths of calls as a Fibonacci number."""
    calls = [f"def f{n}(x): return f{n + 1}(x) + f{n + 2}(x)" for n in range(60)]
    (tmp_path / "helpers_60.py").write_text("\n".join([*calls, "def f60(x): return x", "def f61(x): return 1"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("helpers_60")
    before = code_text(module.f0)
    assert len(before) < 50_000
    assert code_text(module.f0) == before
    monkeypatch.setattr(module, "f61", lambda x: 2)
    assert code_text(module.f0) != before


def test_names_of_functions_are_those_of_the_record() -> None:
    text, functions = take_rewards([by_length(8), (by_length(9), 2)])
    assert text == "python:lambda, python:lambda_2*2.0"
    assert list(functions) == ["lambda", "lambda_2"]


def test_tools_and_environments_are_handed_over() -> None:
    def search(query: str) -> str:
        return query

    class Game: ...

    config, inputs = Inputs.take(grpo.Config(), tools=[search, "mine.py:fetch"])
    assert (config.episodes.tools, dict(inputs.tools)) == ("python:search, mine.py:fetch", {"search": search})
    config, inputs = Inputs.take(grpo.Config(), env=Game)
    assert (config.episodes.env, dict(inputs.env)) == ("python:Game", {"Game": Game})
    named = grpo.Config(episodes=Episodes(tools="mine.py:f"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tools": [search, search]}, "field episodes.tools: two functions are called search; rename one"),
        ({"tools": [3]}, "field episodes.tools: got an object of type int; give a function"),
        ({"tools": []}, "field episodes.tools: the list is empty"),
        ({"env": Game()}, "field episodes.env: got an object of type Game; give its class"),
        ({"env": {}}, "field episodes.env: the dictionary is empty"),
        ({"env": {"a=b": Game}}, "field episodes.env: 'a=b' is not a valid name of an environment"),
        ({"config": named, "tools": search}, "field episodes.tools: set in the config and handed over"),
    ]
    for given, message in wrong:
        with pytest.raises(GrpoError, match=message):
            Inputs.take(**{"config": grpo.Config(), **given})
