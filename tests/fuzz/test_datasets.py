"""Generated datasets: each becomes problems, or is refused in one line that names the field, or the file and row."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from grpo.config import Dataset
from grpo.model.load import load_policy
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.invoke import Request, invoke_each
from grpo.rewards.signature import TRL, columns_of
from grpo.tasks import load_task
from grpo.tasks.handed_over import take_rows
from grpo.tasks.rows import ANSWER_COLUMNS, PROMPT_COLUMNS, Source, written_answers
from helpers.fuzz import Fuzz, budget, odd_text, odd_value

COUNT = budget(2_200)
ROLES = ("user", "assistant", "system", "tool", "", "USER", None, 3)
COLUMNS = (*PROMPT_COLUMNS, *ANSWER_COLUMNS, "messages", "completion", "id", "Prompt", "", " ", "a b", "列")
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "python")
BAD_TURNS = ("text", {"role": "user"}, {"content": "x"}, {"role": "user", "content": "x", "name": 1})
BAD_BYTES = (b"\xff", b"\x00", b"[" * 2000, b"\n\n", b"{", b'"', b",", b"\xed\xa0\x80")


def conversation(rng: Random) -> list[Any]:
    def content() -> Any:
        return odd_value(rng) if rng.random() < 0.2 else odd_text(rng)

    turns: list[Any] = [{"role": rng.choice(ROLES), "content": content()} for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.1:
        turns.append(rng.choice(BAD_TURNS))
    return turns


def value(rng: Random, column: str) -> Any:
    if column in ("prompt", "messages") and rng.random() < 0.3:
        return conversation(rng)
    return odd_text(rng) if rng.random() < 0.6 else odd_value(rng)


def table(rng: Random) -> list[dict[str, Any]]:
    """Rows with the same columns, mostly: all sound, one of them odd, or all odd."""
    columns = list(dict.fromkeys(rng.choices(COLUMNS, k=rng.randint(0, 4))))
    if rng.random() < 0.9:
        columns = list(dict.fromkeys([rng.choice(PROMPT_COLUMNS), rng.choice(ANSWER_COLUMNS), *columns]))
    count = rng.randint(0, 12)
    odd = rng.choice(([], [rng.randrange(12)], range(count)))
    rows = [{name: value(rng, name) if i in odd else f"{name} {i}" for name in columns} for i in range(count)]
    if rows and rng.random() < 0.1:
        rows[-1] = {odd_text(rng): odd_value(rng)}
    return rows


def written(rng: Random, rows: list[dict[str, Any]], kind: str, folder: Path) -> Path:
    """A file with these rows, sometimes with broken bytes."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        try:
            parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        except (pyarrow.ArrowException, UnicodeError, OverflowError, ValueError):
            parquet.write_table(pyarrow.table({"prompt": [1.5, None], "answer": [["a"], []]}), path)
    elif kind in ("csv", "tsv"):
        with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as stream:
            writer = csv.writer(stream, delimiter="\t" if kind == "tsv" else ",", escapechar="\\")
            writer.writerows([list(rows[0]) if rows else [], *(list(row.values()) for row in rows)])
    else:
        ascii = rng.random() < 0.5
        lines = [json.dumps(row, ensure_ascii=ascii) for row in rows]
        text = "\n".join(lines) if kind == "jsonl" else f"[{', '.join(lines)}]"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
    if rng.random() < 0.3:
        path.write_bytes(broken(rng, path.read_bytes()))
    return path


def broken(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, len(data))
        if rng.random() < 0.5:
            data = data[:place] + rng.choice(BAD_BYTES) + data[place:]
        elif rng.random() < 0.5:
            data = data[:place]
        else:
            data = data[:place] + rng.randbytes(8) + data[place + 8 :]
    return data


def settings(rng: Random) -> Dataset:
    def sometimes(text: str) -> str:
        return text.replace("\x00", "") if rng.random() < 0.05 else ""

    return Dataset(
        prompt=sometimes(rng.choice((*COLUMNS, odd_text(rng)))),
        answer=sometimes(rng.choice((*COLUMNS, odd_text(rng)))),
        template=sometimes(rng.choice(("Q: {prompt}\nA:", "{prompt} {answer}", "{列}", "{{prompt}}", odd_text(rng)))),
        system_prompt=sometimes(odd_text(rng)),
        chat=rng.random() < 0.8,
        max_prompt_tokens=rng.choice((0, 0, 0, 5, 64)),
        heldout_share=rng.choice((0.1, 0.5, 0.5, 0.9)),
        heldout=sometimes(rng.choice(("test", "validation", "other.jsonl", odd_text(rng)))),
        split="train" if rng.random() < 0.9 else odd_text(rng),
    )


def number_of_columns(completions: list[str], **columns: list[Any]) -> list[float]:
    """As in TRL, every column is a list with an entry for each completion."""
    given = {name: each for name, each in columns.items() if name not in TRL}
    assert all(len(each) == len(completions) for each in given.values())
    return [float(len(given))] * len(completions)


def test_every_dataset_is_read_or_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz = Fuzz("datasets", r"^field (data|dataset)\b|rows\.\w+(:\d+|: )|^data\[")
    policy = load_policy("nano")
    reward = FunctionReward(Spec("python", "columns", 1.0), number_of_columns)
    reward.load()

    def read(rng: Random) -> None:
        rows, dataset = table(rng), settings(rng)
        kind = rng.choice(FORMATS)
        if kind == "python":
            split = rng.choice(("", "", "train", "train", "test"))
            handed_over = take_rows({split: rows} if split else rows)
            source = Source(f"python:{len(rows)} rows", dataset, handed_over)
        else:
            source = Source(str(written(rng, rows, kind, tmp_path).relative_to(tmp_path)), dataset)
        if rng.random() < 0.2:
            assert all(problem.answer for problem in written_answers(source).train)
            return
        task = load_task("data", source.data, dataset, source.rows)
        for problem in (*task.draw(0, 3, seed=1), *task.heldout()[:3]):
            policy.prompt_tokens(problem)
            json.dumps([problem.id, problem.prompt, problem.answer], allow_nan=False).encode()
            f"{problem.prompt}{problem.answer}".encode()
            task.score(problem, "42")
            [outcome] = invoke_each(reward, Request(problem, ("42",)))
            assert outcome.parts == {"columns": float(len(columns_of(problem)))}, outcome.why
            task.recognise(problem.prompt)
        assert task.fingerprint == replace(task.sides).fingerprint

    for number, rng in fuzz.inputs(COUNT):
        fuzz.call(number, lambda rng=rng: read(rng))
    fuzz.report(at_least=COUNT)
