"""Rows of files as problems: every format gives the same, the split is stable, and bad data is told in one line."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

import grpo
from grpo.cli.main import main
from grpo.config import Config, Dataset, Evaluation, SftConfig, System
from grpo.errors import GrpoError
from grpo.record.store import Run
from grpo.tasks import load_task
from grpo.tasks.datasets import order_of
from grpo.tasks.protocol import assumptions_of
from grpo.tasks.readers import read_rows
from grpo.tasks.rows import Source, read_problems
from grpo.training.loop import train

ROWS = [{"ask": f"{a}+{a + 1}+{a + 2}=", "gold": str(3 * a + 3), "level": a % 3} for a in range(10, 90)]
MAPPED = Dataset(prompt="ask", answer="gold")


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_problems(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", ROWS)
    sides = read_problems(Source(str(path), MAPPED))
    asked = {problem.prompt: problem.answer for problem in (*sides.train, *sides.heldout)}
    assert asked == {row["ask"]: row["gold"] for row in ROWS}
    first = min((*sides.train, *sides.heldout), key=lambda problem: int(problem.place.rpartition(":")[2]))
    assert first.place == f"{path}:{2 if suffix in ('.csv', '.tsv') else 1}"
    assert str(first.columns["level"]) == "1"


def test_a_hugging_face_dataset_saved_to_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:5])}
    )
    both.save_to_disk(tmp_path / "set")
    name = str(tmp_path / "set")
    assert [row.columns for row in read_rows(name, "test")] == ROWS[:5]
    sides = read_problems(Source(name, Dataset(prompt="ask", answer="gold", heldout="test")))
    assert (len(sides.train), len(sides.heldout)) == (80, 5)
    assert min(problem.place for problem in sides.heldout) == f"{name}[test]:1"
    with pytest.raises(GrpoError, match=r"field dataset.split: .* has no split 'dev'; it has train, test"):
        read_rows(name, "dev")


def test_a_folder_of_files_is_a_dataset_too(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", ROWS)
    assert [row.columns["ask"] for row in read_rows(str(tmp_path))] == [row["ask"] for row in ROWS]


def test_the_folder_one_is_in_is_a_dataset_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    write(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    assert len(read_rows(".")) == len(ROWS)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("", r"the folder set has no file that ends in \.jsonl, .*\.parquet and no saved dataset; it has nothing"),
        ("notes.txt", r"the folder set has no file that ends in .* and no saved dataset; it has notes\.txt"),
        ("rows.jsonl", r"cannot load the dataset set: .*JSON"),
    ],
)
def test_a_folder_without_rows_says_what_it_lacks(
    file: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()
    if file:
        Path("set", file).write_text('{"prompt": \n')
    with pytest.raises(GrpoError, match=f"^field data: {says}"):
        read_rows("set")


def test_the_split_follows_the_question_alone(tmp_path: Path) -> None:
    sides = read_problems(Source(str(write(tmp_path / "a.jsonl", ROWS)), MAPPED))
    shuffled = [*ROWS[40:], *ROWS[:40], *ROWS[:10]]  # sorted otherwise, and some rows twice
    again = read_problems(Source(str(write(tmp_path / "b.jsonl", shuffled)), MAPPED))
    assert {p.prompt for p in again.heldout} == {p.prompt for p in sides.heldout}
    assert not {p.prompt for p in again.heldout} & {p.prompt for p in again.train}
    assert 2 <= len(sides.heldout) <= 16, "a tenth of 80"


@pytest.mark.parametrize("apart", [False, True])
def test_the_first_held_out_problems_are_of_every_part_of_a_sorted_file(apart: bool, tmp_path: Path) -> None:
    """An evaluation takes the first ones; here half of the rows are of each kind, one kind after the other."""
    kinds = [{"prompt": f"{a}{sign}{b}=", "answer": 1} for sign in "+*" for a in range(30) for b in range(30)]
    file = str(write(tmp_path / "a.jsonl", kinds))
    settings = Dataset(heldout=str(write(tmp_path / "b.jsonl", kinds))) if apart else Dataset(heldout_share=0.5)
    heldout = read_problems(Source(file, settings)).heldout
    assert len(heldout) == (1800 if apart else 893)
    assert 80 < sum("+" in problem.prompt for problem in heldout[:200]) < 120
    # Where the rows stand in the file makes no difference.
    backwards = read_problems(Source(str(write(tmp_path / "c.jsonl", kinds[::-1])), Dataset(heldout_share=0.5)))
    assert apart or [problem.id for problem in backwards.heldout] == [problem.id for problem in heldout]


def test_of_a_few_rows_one_question_is_held_out(tmp_path: Path) -> None:
    """The question whose hash is the smallest, with all its rows; the rest is trained on."""
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(2) for b in range(2) for _ in range(2)]
    for count in (4, 6, 8):
        path = write(tmp_path / f"{count}.jsonl", rows[:count])
        found = read_problems(Source(str(path), Dataset(heldout_share=1e-9)))
        asked = {row["prompt"] for row in rows[:count]}
        first = min(asked, key=lambda prompt: hashlib.sha256(prompt.encode()).digest())
        assert [problem.prompt for problem in found.heldout] == [first] * 2
        assert {problem.prompt for problem in found.train} == asked - {first}


def test_held_out_rows_of_another_file(tmp_path: Path) -> None:
    settings = Dataset(prompt="ask", answer="gold", heldout=str(write(tmp_path / "test.csv", ROWS[:7])))
    sides = read_problems(Source(str(write(tmp_path / "train.jsonl", ROWS[7:])), settings))
    assert (len(sides.train), len(sides.heldout)) == (73, 7)


def test_held_out_rows_may_have_columns_of_their_own(tmp_path: Path) -> None:
    other = [{"question": [{"role": "user", "content": "6*7="}], "answer": 42}, {"question": "1+1="}]
    settings = Dataset(prompt="ask", answer="gold", heldout=str(write(tmp_path / "test.jsonl", other)))
    sides = read_problems(Source(str(write(tmp_path / "train.jsonl", ROWS)), settings))
    assert [(problem.prompt, problem.answer) for problem in sides.heldout] == [("6*7=", "42"), ("1+1=", "")]
    task = load_task("data", str(tmp_path / "train.jsonl"), settings)
    assert task.is_correct(task.heldout()[0], "42") is True
    assert task.is_correct(task.heldout()[1], "2") is None
    with pytest.raises(GrpoError, match=r'test\.jsonl:2: has no column "answer"; it has question; without gold'):
        task.check_requirements()


@pytest.mark.parametrize("shape", ["split", "folder", "folder with a split of its own"])
def test_held_out_rows_of_a_dataset(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    for folder in ("set", "other"):
        Path(folder).mkdir()
    write(Path("set/train.jsonl"), ROWS[7:])
    names = {"split": "set/test.jsonl", "folder": "other/rows.jsonl"}
    write(Path(names.get(shape, "other/test.jsonl")), ROWS[:7])
    heldout = "test" if shape == "split" else "./other"
    sides = read_problems(Source("set", Dataset(prompt="ask", answer="gold", heldout=heldout)))
    assert (len(sides.train), len(sides.heldout)) == (73, 7)


def test_a_task_keeps_its_dataset_and_takes_other_held_out_rows() -> None:
    asked = Source("", Dataset(heldout="mine.jsonl", subset="")).or_else("openai/gsm8k", subset="main", heldout="test")
    assert (asked.data, asked.settings.subset, asked.settings.heldout) == ("openai/gsm8k", "main", "mine.jsonl")


def test_what_is_typed_is_asked_as_the_rows_are(tmp_path: Path) -> None:
    path = str(write(tmp_path / "rows.jsonl", ROWS))
    asked = {"prompt": "ask", "answer": "gold", "system_prompt": "Be brief."}
    task = load_task("data", path, Dataset(template="Q: {ask}", **asked))
    problem = task.typed("6*7?")
    assert (problem.prompt, problem.answer) == ("Be brief.\n\nQ: 6*7?", "")
    assert [dict(turn) for turn in problem.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 6*7?"},
    ]
    with pytest.raises(GrpoError, match=r"field dataset\.template: \{level\} names no column"):
        load_task("data", path, Dataset(template="{level}: {ask}", **asked)).typed("6*7?")


def test_held_out_rows_that_are_trained_on_are_told(tmp_path: Path) -> None:
    other = str(write(tmp_path / "test.csv", ROWS[:7]))
    path = str(write(tmp_path / "train.jsonl", ROWS[5:]))
    task = load_task("data", path, Dataset(prompt="ask", answer="gold", heldout=other))
    [note] = assumptions_of(task)
    assert note.startswith("2 of 7 held-out problems are also training problems")
    assert load_task("data", path, Dataset(prompt="ask", answer="gold")).notes == []


def test_template_system_prompt_and_conversations(tmp_path: Path) -> None:
    path = str(write(tmp_path / "rows.jsonl", ROWS))
    settings = Dataset(
        prompt="ask", answer="gold", template='Level {level}:\n{prompt} {"x"}', system_prompt="Be brief."
    )
    problem = read_problems(Source(path, settings)).train[0]
    row = problem.columns
    assert problem.messages[0] == {"role": "system", "content": "Be brief."}
    assert problem.messages[1]["content"] == f'Level {row["level"]}:\n{row["ask"]} {{"x"}}'
    assert problem.prompt == "Be brief.\n\n" + problem.messages[1]["content"]
    assert not read_problems(Source(path, Dataset(prompt="ask", answer="gold", chat=False))).train[0].messages


def test_conversations_stay_as_they_are(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    path = write(tmp_path / "talk.jsonl", [{"prompt": turns, "answer": [3, "three"]}])
    other = write(tmp_path / "other.jsonl", [{"prompt": "Is it?", "answer": True}])
    task = load_task("data", str(path), Dataset(heldout=str(other)))
    [problem] = task.draw(0, 1, 1)
    assert problem.messages == tuple(turns)
    assert (problem.prompt, problem.answer) == ("S\n\nQ", "3")
    assert task.score(problem, "3") == task.score(problem, "Three.") == {"correct": 1.0}, "any of several golds"
    assert task.score(problem, "four") == {"correct": 0.0}
    assert task.heldout()[0].answer == "yes"


def test_draws_go_through_every_row_once_an_epoch(tmp_path: Path) -> None:
    task = load_task("data", str(write(tmp_path / "rows.jsonl", ROWS)), MAPPED)
    rows = len(task.sides.train)
    asked = [problem.prompt for step in range(rows) for problem in task.draw(step, 8, seed=1)]
    for epoch in range(8):
        assert len(set(asked[epoch * rows : (epoch + 1) * rows])) == rows
    assert asked[:rows] != asked[rows : 2 * rows]
    assert task.draw(3, 8, 1) == task.draw(3, 8, 1) != task.draw(3, 8, 2)
    assert len({problem.id for problem in task.draw(0, 3 * rows, 1)}) == 3 * rows, "other ids, other completions"


def test_the_order_is_shuffled_once_an_epoch_and_stays_the_same(tmp_path: Path) -> None:
    task = load_task("data", str(write(tmp_path / "rows.jsonl", ROWS)), MAPPED)
    train = task.sides.train
    rows = len(train)
    order_of.cache_clear()
    for step in range(2 * rows // 8):
        places = [divmod(place, rows) for place in range(8 * step, 8 * (step + 1))]
        shuffled = {epoch: random.Random(f"5/{epoch}").sample(range(rows), rows) for epoch, _ in places}
        assert task.draw(step, 8, seed=5) == [train[shuffled[epoch][at]] for epoch, at in places]
    assert order_of.cache_info().misses == 2, "one shuffle for each of the two epochs"


def test_a_changed_row_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    before = load_task("data", str(path), MAPPED).fingerprint
    assert before == load_task("data", str(path), MAPPED).fingerprint
    write(path, [*ROWS[:-1], {**ROWS[-1], "gold": "0"}])
    assert before != load_task("data", str(path), MAPPED).fingerprint


GOOD = "".join(json.dumps({"question": f"{a}+1=", "answer": a + 1}) + "\n" for a in range(40))

FAULTS = {
    "no file": ("--data rows.jsonl", None, "field data: no file rows.jsonl"),
    "unknown kind": ("--data rows.xml", "<a/>", "field data: rows.xml has an unknown ending; known are .jsonl"),
    "empty": ("--data rows.jsonl", "\n\n", "field data: rows.jsonl has no rows"),
    "no JSON": (
        "--data rows.jsonl",
        '{"question": "q", "answer": 1}\n\n{"question": \n',
        "rows.jsonl:3: not a line of JSON",
    ),
    "no UTF-8": (
        "--data rows.jsonl",
        b'{"question": "q", "answer": 1}\n\xff\n',
        "rows.jsonl:2: not a line of JSON in UTF-8",
    ),
    "no object": ("--data rows.jsonl", "[1]\n", "rows.jsonl:1: expected an object like"),
    "no column": (
        "--data rows.jsonl --dataset.prompt query",
        '{"question": "q", "answer": 1}\n',
        "field dataset.prompt: no column 'query' in rows.jsonl, which has question, answer;",
    ),
    "no usual column": (
        "--data rows.jsonl",
        '{"q": "?", "answer": 1}\n',
        "field dataset.prompt: no column named prompt, ",
    ),
    "column missing later": (
        "--data rows.jsonl",
        GOOD + '{"question": "r"}\n',
        'rows.jsonl:41: has no column "answer"; it has question; without gold answers the task\'s checker cannot score',
    ),
    "empty prompt": (
        "--data rows.jsonl",
        '{"question": " ", "answer": 1}\n',
        'rows.jsonl:1: column "question" must be text',
    ),
    "half of a character": (
        "--data rows.jsonl",
        GOOD + '{"question": "\\ud83d", "answer": 1}\n',
        r"rows.jsonl:41: \ud83d is half of a character (a lone surrogate); write a whole one",
    ),
    "null answer": (
        "--data rows.jsonl",
        GOOD + '{"question": "q", "answer": null}\n',
        'rows.jsonl:41: column "answer" has no gold answer; got null; without gold answers',
    ),
    "no answers": (
        "--data rows.jsonl",
        GOOD.replace("answer", "topic"),
        "field dataset.answer: no column named answer, gold, target, label, solution, output in rows.jsonl, which has "
        "question, topic; name one with --dataset.answer; without gold answers the task's checker cannot score: give a "
        "reward of your own (--reward file.py:function, or reward= in Python)",
    ),
    "bad template": (
        "--data rows.jsonl --dataset.template {level}",
        '{"question": "q", "answer": 1}\n',
        "field dataset.template: {level} names no column of rows.jsonl:1, which has question, answer",
    ),
    "no held-out rows": (
        "--data rows.jsonl --heldout-share 0.0001",
        '{"question": "q", "answer": 1}\n',
        "field dataset.heldout_share: 0.0001 leaves no held-out rows of the 1 in rows.jsonl",
    ),
    "split of a file": (
        "--data rows.jsonl --dataset.heldout test",
        '{"question": "q", "answer": 1}\n',
        "field dataset.heldout: 'test' is a split, but rows.jsonl is a file without splits",
    ),
    "the same file": (
        "--data rows.jsonl --dataset.heldout rows.jsonl",
        '{"question": "q", "answer": 1}\n',
        "field dataset.heldout: rows.jsonl has the training rows; name another file",
    ),
    "the same file by another path": (
        "--data rows.jsonl --dataset.heldout ./rows.jsonl",
        '{"question": "q", "answer": 1}\n',
        "field dataset.heldout: ./rows.jsonl has the training rows; name another file",
    ),
    "no held-out file": (
        "--data rows.jsonl --dataset.heldout test.jsonl",
        '{"question": "q", "answer": 1}\n',
        "field dataset.heldout: no file test.jsonl; name a file",
    ),
    "broken table": (
        "--data rows.csv",
        "question,answer\nq,1\nr\n",
        "rows.csv:3: expected 2 fields, as in the first line",
    ),
    "a column twice": (
        "--data rows.csv",
        "question,answer,answer\n6*7=,42,41\n",
        "rows.csv:1: has more than one column 'answer'; rename the others",
    ),
    "broken quotes": (
        "--data rows.csv",
        'question,answer\nq,1\n"r"x,2\n',
        "rows.csv: line 3 or later is not a valid row",
    ),
    "broken array": ("--data rows.json", '[{"question":\n x}]', "rows.json:2: not JSON in UTF-8"),
    "unreadable parquet": (
        "--data rows.parquet",
        b"PAR1 this is not parquet",
        "rows.parquet: cannot be read as Parquet",
    ),
    "data for a generator": (
        "--task arithmetic --data rows.jsonl",
        "",
        "field data: the task arithmetic makes its own problems",
    ),
    "columns for a generator": (
        "--dataset.answer gold",
        "",
        "field dataset.answer: the task arithmetic makes its own problems; leave it out, or name another task",
    ),
    "no data": ("--task data", "", "field data: the task data needs rows"),
    "variant": (
        "--task gsm8k:hard --data rows.jsonl",
        "",
        "field task: gsm8k has no variant 'hard'; the only one is gsm8k:strict",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_data_is_told_in_one_line(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    arguments, content, said = FAULTS[name]
    if ".parquet" in arguments:
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    if content is not None:
        file = next((word for word in arguments.split() if word.startswith("rows.")), "rows.jsonl")
        Path(file).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["train", *arguments.split(), "--steps", "1"]) == 2
    out = capsys.readouterr().err
    assert said in out
    assert out.count("\n") == 1
    assert not Path("runs").exists()


def test_a_parquet_file_with_other_column_names_trains_nano(tmp_path: Path) -> None:
    """Right from the rows to the weights: the reward comes from the mapped columns, and is earned."""
    path = write(tmp_path / "sums.parquet", ROWS)
    config = Config(
        model="nano",
        data=str(path),
        dataset=MAPPED,
        steps=3,
        prompts_per_step=8,
        evaluation=Evaluation(every=0, probes=1),
        system=System(runs=str(tmp_path / "runs"), device="cpu"),
    )
    with train(config) as run:
        assert run.summary()["status"] == "finished"
        rows = run.metrics()
        known = {problem.id for problem in load_task("data", str(path), MAPPED).problems()}
        assert {group["problem_id"] for group in run.groups(0)} <= known
    assert len(rows) == 3
    assert 0 < rows[0]["reward_mean"] < 1
    assert {"strictly_right_share", "unparsed_share"} <= set(rows[0])
    assert rows[0]["updates"] == 1


def test_a_resumed_run_must_learn_from_the_same_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(Path("rows.jsonl"), ROWS)
    flags = (
        "--model nano --data rows.jsonl --dataset.prompt ask --dataset.answer gold --system.device cpu --quiet "
        "--steps 1 --prompts-per-step 2 --group-size 2 --evaluation.problems 2 --run job --resume"
    )
    command = ["train", *flags.split()]
    assert main(command) == 0
    write(path, [*ROWS[:-1], {**ROWS[-1], "gold": "0"}])
    assert main([*command, "--steps", "2"]) == 2
    assert "job began with other inputs: data: column gold changed; restore" in capsys.readouterr().err
    write(path, ROWS)
    assert main([*command, "--steps", "2"]) == 0


TURNS = [
    {"prompt": [{"role": "user", "content": row["ask"]}], "answer": row["gold"], "level": row["level"]} for row in ROWS
]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"level": 7}, "data: column level changed; restore"),
        ({"prompt": [{**TURNS[0]["prompt"][0], "role": "system"}]}, "data: column prompt changed; restore"),
        ({"hint": "add"}, "data: column hint added; restore"),
    ],
)
def test_a_resume_names_the_column_that_changed(change: dict, says: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """A column that only the reward reads, a role, and a column in a single row."""
    monkeypatch.chdir(tmp_path)
    path = write(Path("rows.jsonl"), TURNS)
    flags = (
        "--model nano --data rows.jsonl --system.device cpu --quiet --steps 1 --prompts-per-step 2 --group-size 2 "
        "--evaluation.problems 2 --run job --resume"
    )
    assert main(["train", *flags.split()]) == 0
    write(path, [{**TURNS[0], **change}, *TURNS[1:]])
    assert main(["train", *flags.split(), "--steps", "2"]) == 2
    assert says in capsys.readouterr().err


def test_over_long_prompts_are_found_at_load(tmp_path: Path, monkeypatch, capsys) -> None:
    """In any row, not only the first drawn: its place, its length and the limit are named."""
    monkeypatch.chdir(tmp_path)
    write(Path("rows.jsonl"), [*ROWS, {"ask": "1+" * 500 + "1=", "gold": "501"}])
    command = "train --model nano --data rows.jsonl --dataset.prompt ask --dataset.answer gold --system.device cpu"
    assert main(command.split()) == 2
    line = capsys.readouterr().err
    assert "rows.jsonl:81 with 1002 tokens" in line
    assert "leave no room for 48 new tokens in the 128 positions" in line
    assert "or leave longer prompts out (--dataset.max-prompt-tokens 80)" in line


def test_a_prompt_without_tokens_of_the_model_is_found_at_load(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("rows.jsonl"), [*ROWS, {"ask": "1+é+1=", "gold": "3"}])
    command = "train --model nano --data rows.jsonl --dataset.prompt ask --dataset.answer gold --system.device cpu"
    assert main([*command.split(), "--steps", "1", "--prompts-per-step", "2", "--evaluation.problems", "2"]) == 2
    says = "grpo: problem rows.jsonl:81: nano has no token for part of '1+é+1='; use another model\n"
    assert capsys.readouterr().err == says
    assert not Path("runs").exists()


def test_rows_with_long_prompts_are_left_out(tmp_path: Path, monkeypatch, capsys) -> None:
    """One row in three is longer than the limit; a token of nano is a character."""
    monkeypatch.chdir(tmp_path)
    rows = [{**row, "ask": row["ask"].replace("=", "+0" * 10 * (at % 3) + "=")} for at, row in enumerate(ROWS)]
    write(Path("rows.jsonl"), rows)
    flags = (
        "--model nano --data rows.jsonl --dataset.prompt ask --dataset.answer gold --system.device cpu --steps 1 "
        "--prompts-per-step 2 --group-size 2 --evaluation.problems 2 --run job"
    )
    lengths = sorted({len(row["ask"]) for row in rows})
    assert lengths == [9, 29, 49]
    assert main(["train", *flags.split(), "--dataset.max-prompt-tokens", "29"]) == 0
    note = "dataset: 26 of 80 rows left out: prompt longer than 29 tokens"
    assert note in capsys.readouterr().err
    with Run.open(Path("runs"), "job", readonly=True) as run:
        assert note in [finding["text"] for finding in run.findings()]
        assert all(len(group["prompt"]) <= 29 for group in run.groups(0))
    assert main(["eval", "job"]) == 0, "with the run's rows"
    assert main(["train", *flags.split(), "--dataset.max-prompt-tokens", "8", "--run", "other"]) == 2
    line = capsys.readouterr().err
    assert "field dataset.max_prompt_tokens: the prompts of all 80 rows have more than 8 tokens, the shortest" in line
    task = load_task("data", "rows.jsonl", Dataset(prompt="ask", answer="gold", max_prompt_tokens=9), model="nano")
    assert len(task.problems()) == 27
    assert task.problems()[0].id in {p.id for p in load_task("data", "rows.jsonl", MAPPED).problems()}


def test_long_prompts_are_left_out_of_held_out_rows_and_of_sft(tmp_path: Path) -> None:
    rows = [{"ask": "1+1=", "gold": "2"}, {"ask": "1+1+1=", "gold": "3"}]
    path, other = (str(write(tmp_path / name, rows)) for name in ("rows.jsonl", "other.jsonl"))
    settings = Dataset(prompt="ask", answer="gold", heldout=other, max_prompt_tokens=4)
    sides = read_problems(Source(path, settings, model="nano"))
    assert [problem.prompt for problem in (*sides.train, *sides.heldout)] == ["1+1=", "1+1="]
    assert sides.notes == [
        "dataset: 1 of 2 rows left out: prompt longer than 4 tokens",
        "dataset: 1 of 2 held-out rows left out: prompt longer than 4 tokens",
    ]
    with pytest.raises(GrpoError, match=r"leaves no held-out rows of the 1 in .* \(dataset: 1 of 2 rows left out: "):
        read_problems(Source(path, replace(settings, heldout=""), model="nano"))
    system = System(runs=str(tmp_path), device="cpu")
    config = SftConfig(model="nano", data=path, dataset=replace(settings, heldout=""), steps=1, system=system)
    with grpo.sft(config) as run:
        assert [finding["text"] for finding in run.findings()] == sides.notes[:1]
