"""`grpo check`: golds that fail are listed, junk that passes is, tricks are counted, and the sums behind G hold."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo.cli.commands import check
from grpo.cli.commands.check import ProgressLine
from grpo.cli.main import main
from grpo.cli.task_check import Count, check_task, lines, zero_signal_share
from grpo.cli.trial_answers import FORMS, in_form
from grpo.config import Episodes
from grpo.model.hub import locate_model
from grpo.rewards import Scorer
from grpo.tasks import load_task
from grpo.tasks.code import Code
from grpo.types import Completion, Problem

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
    texts = {form: [text for _, text in in_form(problems, form)] for form in FORMS}
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
        "    def draw(self, step, count, seed): return [Problem(f'{step}/{i}', f'q{i}', 'a') for i in range(count)]\n"
        "    def heldout(self): return [Problem('h', 'q', 'a')]\n"
        "    def score(self, problem, text): return {'correct': float('!' in text or text == 'a')}\n"
    )
    assert main(["check", str(path), "--problems", "10"]) == 1
    out = capsys.readouterr().out
    assert "generous: 10 of 10 golds pass" in out
    assert "junk: 10 of 90 texts without an answer earn the full reward" in out
    assert "REWARDED h: !!!" in out


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


class CountingScorer(Scorer):
    """Counts the texts; scores those of `code` without a sandbox."""

    texts = 0

    def score_texts(self, pairs: Iterable[tuple[Problem, str]]) -> list[Completion]:
        pairs = list(pairs)
        self.texts += len(pairs)
        return super().score_texts(pairs)


def test_code_is_tried_in_a_fenced_block_and_every_problem_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty problems, drawn a thousand times: the gold, 9 junk texts, 7 tricks, a sentence and a fenced block."""
    monkeypatch.setattr("grpo.tasks.code.require", lambda: None)
    monkeypatch.setattr("grpo.tasks.code.passes_calls", lambda program, function, tests: "def " in program)
    monkeypatch.setattr("grpo.tasks.code.passes_runs", lambda program, tests: "print" in program)
    monkeypatch.setattr(Code, "trusted", True, raising=False)
    reports: list[tuple[int, int]] = []
    with CountingScorer(Code()) as scorer:
        found = check_task(scorer, report=lambda done, count: reports.append((done, count)))
    assert found.golds == Count(20, 20)
    assert found.forms["fenced block"] == Count(20, 20)
    assert set(found.forms) == {"bare", "sentence", "fenced block"}
    assert scorer.texts - 1 <= 20 * (1 + 9 + 7 + 2) + 20, "the first one starts the workers"
    assert [done for done, _ in reports] == [*range(64, scorer.texts - 1, 64), scorer.texts - 1]
    assert {count for _, count in reports} == {scorer.texts - 1}


def test_progress_is_a_line_in_a_log_and_only_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 2.5, 3.0, 9.0])
    monkeypatch.setattr("grpo.cli.commands.check.time.monotonic", lambda: next(clock))
    line = ProgressLine()
    for done in (64, 128, 192, 200):
        line(done, 200)
    assert capsys.readouterr().err.splitlines() == [
        "grpo check: 128 of 200 answers scored",
        "grpo check: 200 of 200 answers scored",
    ]


def test_wrong_answers_with_the_full_reward_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gamed.py"
    path.write_text(
        "from grpo.types import Problem\n"
        "class Gamed:\n"
        "    name, trusted = 'gamed', True\n"
        "    def draw(self, step, count, seed): return [Problem(f'{step}/{i}', f'q{i}', '7') for i in range(count)]\n"
        "    def heldout(self): return [Problem('h', 'q', '7')]\n"
        "    def score(self, problem, text): return {'correct': float('7' in text)}\n"
        "    def is_correct(self, problem, text): return text.strip(' .').endswith('7')\n"
    )
    assert main(["check", str(path), "--problems", "4"]) == 0
    out = capsys.readouterr().out
    assert "answers earn the full reward and are wrong by is_correct:" in out
    assert "WRONG h: 0 1 2 3 4 5 6 7 8 9 (every digit)" in out


def test_check_without_anything_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "grpo check TASK, or grpo check --data FILE" in capsys.readouterr().err


def test_a_task_whose_golds_stand_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("arithmetic")
    monkeypatch.setattr(type(task), "score", lambda _, problem, text: {"correct": float(text == problem.answer)})
    told = "\n".join(lines(check_task(Scorer(task), problems=20, samples=0)))
    assert "golds are accepted as they are, and in no other form" in told
    assert "sentence" not in told


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`grpo check --show 2` of rows, with a model folder that has a tokenizer and no weights."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(locate_model("nano"), "model", ignore=shutil.ignore_patterns("*.safetensors"))
    Path("model/chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ more }}"
    )
    row = {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}
    Path("own.jsonl").write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(9)))
    Path("plain.jsonl").write_text(json.dumps({"prompt": "\x1b[1m1\n+1=", "answer": "2"}) + "\n")
    return ["check", "--data", "own.jsonl", "--show", "2", "--dataset.heldout", "plain.jsonl"]


def test_prompts_are_shown_as_the_model_reads_them(own: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: four characters and <end>, then one more character."""
    flags = [*own, "--model", "./model", "--dataset.chat-template-kwargs", '{"more": "7"}']
    assert main(flags) == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["own.jsonl:1   6 tokens   gold 2", "1+1=<end>7"]
    assert main([*flags, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["text"], first["tokens"], first["answer"]) == ("1+1=<end>7", [1, 10, 1, 12, 18, 7], "2")


def test_prompts_are_shown_with_tools(own: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nano's characters are digits and signs, so its template writes the number of tools."""
    Path("model/chat_template.jinja").write_text("{{ messages[0].content }}{{ tools | length }}")
    docstring = '"""Doubles.\n\n    Args:\n        a: A number.\n    """'
    Path("mine.py").write_text("".join(f"def {name}(a: int):\n    {docstring}\n\n" for name in ("one", "two")))
    assert main([*own, "--model", "./model", "--tools", "mine.py:one,mine.py:two"]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["own.jsonl:1   5 tokens   gold 2", "1+1=2"]
    assert main([*own, "--model", "./model", "--tools", "mine.py:three"]) == 2
    assert capsys.readouterr().err == "grpo: tool mine.py:three: mine.py has no function three; it has one, two\n"


def test_a_check_needs_no_heldout_rows(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run cannot hold out one of one; all rows of a file are shown, in its order."""
    Path("one.jsonl").write_text('{"prompt": "0+1=", "answer": 1}\n')
    assert main(["train", "--model", "nano", "--data", "one.jsonl"]) == 2
    assert "leaves no held-out rows of the 1 in one.jsonl" in capsys.readouterr().err
    assert main(["check", "--data", "one.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["golds"] == {"right": 1, "count": 1}
    Path("five.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "answer": {n + 1}}}\n' for n in range(5)))
    assert main(["check", "--data", "five.jsonl", "--show", "5"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("five.jsonl")]
    assert shown == [f"five.jsonl:{n + 1}   gold {n + 1}" for n in range(5)]


def test_what_a_run_would_warn_of_is_told(own: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: nine prompts of four characters and <end>, one of eight."""
    Path("held.jsonl").write_text(json.dumps({"prompt": "2+2=", "answer": "4"}) + "\n")
    with Path("own.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "1+1+1+1=", "answer": "4"}) + "\n")
    limit = ["--dataset.heldout", "held.jsonl", "--dataset.max-prompt-tokens", "6"]
    assert main([*own, *limit, "--model", "./model", "--dataset.chat-template-kwargs", '{"mor": 7}']) == 0
    assert capsys.readouterr().err.splitlines() == [
        "grpo: dataset: 1 of 10 rows left out: prompt longer than 6 tokens",
        "grpo: dataset.chat_template_kwargs: mor has no effect: the chat template of ./model never mentions it",
    ]


def test_prompts_are_shown_without_a_model(own: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    note = "these are the rows; --model MODEL shows the prompts as the model reads them, with special tokens"
    assert main(own) == 0
    rows = [["own.jsonl:1   gold 2", "user: 1+1=", ""], ["own.jsonl:2   gold 2", "user: 1+1=", ""]]
    assert capsys.readouterr().out.split("\n") == [*rows[0], *rows[1], note, ""]
    assert main([*own, "--data", "plain.jsonl", "--dataset.heldout", "own.jsonl", "--dataset.no-chat"]) == 0
    shown = capsys.readouterr().out.split("\n")
    assert shown[:3] == ["plain.jsonl:1   gold 2", "\\x1b[1m1⏎", "+1="], "a new line is seen, a control code is escaped"


def test_a_model_is_sampled_with_the_tools_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    @contextmanager
    def engine_for(policy: Any, scorer: Any, episodes: Episodes, replier: Any) -> Iterator[Any]:
        played.append(episodes)
        yield SimpleNamespace(sample=lambda *arguments: [])

    monkeypatch.setattr(check, "engine_for", engine_for)
    monkeypatch.setattr("grpo.episodes.start.chosen_replier", lambda episodes: None)
    scorer: Any = SimpleNamespace(task=load_task("arithmetic"), score=list)
    run = {"episodes": {"tools": "tools.py:search", "max_turns": 3}}
    for tools in ("", "tools.py:other"):
        check.sample_groups(scorer, scorer, run, check.CheckOptions(tools=tools))
    assert [(each.tools, each.max_turns) for each in played] == [("tools.py:search", 3), ("tools.py:other", 3)]
