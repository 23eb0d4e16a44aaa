"""`grpo check`: golds that fail are listed, junk that passes is, tricks are counted, and the sums behind G hold."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from grpo.cli.main import main
from grpo.cli.task_check import FORMS, check_task, lines, rephrased, zero_signal_share
from grpo.rewards import Scorer
from grpo.tasks import load_task
from grpo.types import Problem

GSM8K = "".join(
    json.dumps({"question": f"What is {n} + {n}?", "answer": f"{n}+{n} = <<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n:,}"})
    + "\n"
    for n in (*range(-5, 40), 617, 123_456, -8_000)
)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text(GSM8K)
    return Path("train.jsonl")


def test_sound_data_passes_and_every_form_scores(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "gsm8k", "--data", str(rows), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sound"]
    assert found["golds"] == {"right": 48, "count": 48}
    assert set(found["forms"]) == set(FORMS)
    assert len(FORMS) == 12
    assert all(share == {"right": 48, "count": 48} for share in found["forms"].values())
    assert found["junk"]["right"] == 0
    assert found["tricks"]["the gold inside nonsense"] == {"right": 48, "count": 48}
    assert found["tricks"]["the gold, then another number"]["right"] == 0
    assert found["tricks"]["always the commonest gold"]["right"] == 1
    assert found["seconds_per_reward"] > 0
    assert {"extracted", "parts", "reward", "why"} <= set(found["samples"][0])


def test_strict_pays_for_no_nonsense(rows: Path) -> None:
    with Scorer(load_task("gsm8k:strict", str(rows))) as scorer:
        found = check_task(scorer)
    assert found.tricks["the gold inside nonsense"].right == 0
    assert all(share.right == share.count for share in found.forms.values())


def test_forms_say_what_they_should() -> None:
    problems = [Problem("p", "q", "-1,234"), Problem("p", "q", "Paris"), Problem("p", "q", "0.5")]
    texts = {form: [text for _, text in rephrased(problems, form)] for form in FORMS}
    assert texts["dollars"] == ["The answer is $-1,234."]
    assert texts["label"] == ["**Answer:** −1,234", "**Answer:** Paris", "**Answer:** 0.5"]
    assert texts["LaTeX thousands"] == ["$-1{,}234$"]
    assert texts["box with unit"] == [r"\boxed{-1,234 \text{ dollars}}"]


def test_golds_that_fail_are_listed_by_row_and_exit_with_1(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 200
    rows.write_text(GSM8K + json.dumps({"question": "Say it", "answer": long}) + "\n")
    assert main(["check", "gsm8k", "--data", str(rows)]) == 1
    out = capsys.readouterr().out
    assert "48 of 49 golds pass their own check" in out
    assert "FAILS train.jsonl:49: gold word word" in out


def test_junk_that_pays_is_listed_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "generous.py"
    path.write_text(
        "from grpo.types import Problem\n"
        "class Generous:\n"
        "    name = 'generous'\n"
        "    def draw(self, step, count, seed): return [Problem(f'{step}/{i}', 'q', 'a') for i in range(count)]\n"
        "    def heldout(self): return [Problem('h', 'q', 'a')]\n"
        "    def score(self, problem, text): return {'correct': float('!' in text or text == 'a')}\n"
    )
    assert main(["check", str(path), "--problems", "10"]) == 1
    out = capsys.readouterr().out
    assert "generous: 10 of 10 golds pass" in out
    assert "junk: 10 of 90 texts that say nothing earn full marks" in out
    assert "PAID h: !!!" in out


def test_a_model_is_sampled_and_its_groups_counted(capsys: pytest.CaptureFixture[str]) -> None:
    command = "check arithmetic:easy --model nano --problems 10 --model-problems 6 --group-size 4 --samples 5 --json"
    assert main(command.split()) == 0
    found = json.loads(capsys.readouterr().out)
    model = found["model"]
    assert (model["problems"], model["group_size"]) == (6, 4)
    assert set(model["zero_signal"]) == {"2", "4"}
    assert len(found["samples"]) == 5
    assert found["samples"][0]["source"] == "nano"
    assert round(24 * model["pass_rate"], 9) in range(25)
    assert model["zero_signal"]["2"] >= model["zero_signal"]["4"]


def test_zero_signal_share_is_the_mean_over_all_groups_that_could_be_drawn() -> None:
    answers = [[1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1]]
    for size in (2, 3, 5, 6):
        groups = [group for each in answers for group in itertools.combinations(each, size)]
        counted = sum(len(set(group)) == 1 for group in groups) / len(groups)
        assert zero_signal_share([sum(each) for each in answers], 6, size) == pytest.approx(counted)


def test_check_without_anything_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "grpo check TASK, or grpo check --data FILE" in capsys.readouterr().err


def test_a_task_whose_golds_stand_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("arithmetic")
    monkeypatch.setattr(type(task), "score", lambda _, problem, text: {"correct": float(text == problem.answer)})
    told = "\n".join(lines(check_task(Scorer(task), problems=20, samples=0)))
    assert "golds score as they stand, and in none of the forms in which people wrap an answer" in told
    assert "sentence" not in told
