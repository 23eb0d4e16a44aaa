"""Mistakes in settings, rows, models, tasks and rewards: each gives its exit code and one line that names the place.

A fault before the first step leaves no run. A later one leaves a run with a complete record.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import shutil
import signal
import sqlite3
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from grpo.cli.main import main
from grpo.config import Config
from grpo.config import parse as flags
from grpo.model.files import write_model
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.record.checkpoints import Checkpoints
from grpo.record.lock import RunLock
from grpo.record.store import Run
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Problem
from helpers.trainer import Orders, Trainer, command

TRAIN = command(Path("runs"))
"""In a working directory of its own."""


@dataclass(frozen=True)
class Fault:
    provoke: Callable[[pytest.MonkeyPatch], list[str]]
    """Arranges the fault in the working directory; returns the command that meets it."""
    says: tuple[str, ...] = ()
    """What the line on stderr must hold; without any, there is no line."""
    code: int = 2
    steps: int = 0
    """How many the run has recorded afterwards; 0: there is none."""
    warnings: int = 0
    """Lines before the last."""
    after: Callable[[], None] = lambda: None


FAULTS: dict[str, Fault] = {}


def recipe(content: str | bytes) -> Callable[[pytest.MonkeyPatch], list[str]]:
    def provoke(_: pytest.MonkeyPatch) -> list[str]:
        Path("my.toml").write_bytes(content.encode() if isinstance(content, str) else content)
        return ["train", "my.toml", *TRAIN[1:]]

    return provoke


def typed(*more: str) -> Callable[[pytest.MonkeyPatch], list[str]]:
    return lambda _: [*TRAIN, *more]


# Settings

FAULTS |= {
    "01 unknown key": Fault(
        recipe("steps = 2\ngroup_sise = 4\n"), ("field group_sise (my.toml:2): unknown", "group_size")
    ),
    "01 unknown section": Fault(recipe("[los]\nbeta = 1\n"), ("field los.beta (my.toml:2): unknown", "beta in [loss]")),
    "02 number in quotes": Fault(
        recipe('\nlr = "1e-5"\n'), ("field lr (my.toml:2): expected a number", "remove the quotes")
    ),
    "02 text for a number": Fault(
        typed("--steps", "many"), ("field steps (command line): expected a whole number", "many")
    ),
    "03 negative lr": Fault(typed("--lr", "-0.1"), ("field lr (command line): must be above 0; got -0.1",)),
    "03 lr that is no number": Fault(recipe("lr = nan\n"), ("field lr (my.toml:1): expected a finite number", "nan")),
    "04 group of one": Fault(typed("--group-size", "1"), ("field group_size (command line)", "at least 2")),
    "06 broken TOML": Fault(recipe("steps = 2\nlr = = 3\n"), ("my.toml:2:6: not valid TOML",)),
    "06 TOML of bytes": Fault(recipe(b"\xff\xfe"), ("my.toml", "cannot be read as text")),
    "05 tools and an environment": Fault(
        typed("--tools", "a.py:f", "--env", "b.py:C"), ("field episodes.tools", "cannot go with episodes.env")
    ),
    "05 tools without a file": Fault(typed("--tools", "absent.py:f"), ("tool absent.py:f: file absent.py", "exist")),
    "05 an environment of no name": Fault(typed("--env", "game"), ("field episodes.env: 'game'", "file.py:NAME")),
    "40 run outside": Fault(typed("--run", "../../etc"), ("field run", "../../etc", "no folder")),
}


# Rows of a data file


def rows(content: bytes) -> Callable[[pytest.MonkeyPatch], list[str]]:
    def provoke(_: pytest.MonkeyPatch) -> list[str]:
        Path("rows.jsonl").write_bytes(content)
        return ["sft", "nano", "rows.jsonl", "--system.device", "cpu", "--quiet"]

    return provoke


GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'

FAULTS |= {
    "07 broken row": Fault(rows(GOOD * 56 + b'{"prompt": "1+2="\n' + GOOD), ("rows.jsonl:57: not a line of JSON",)),
    "08 missing column": Fault(
        rows(GOOD * 2 + b'{"prompt": "1+2=", "reply": "3"}\n'),
        ('rows.jsonl:3: has no column "answer"', "prompt, reply"),
    ),
    "09 no rows": Fault(rows(b"\n"), ("field data: rows.jsonl has no rows",)),
    "09 no file": Fault(lambda _: ["sft", "nano", "rows.jsonl"], ("field data: no file rows.jsonl",)),
    "10 empty prompt": Fault(
        rows(GOOD + b'{"prompt": "", "answer": "2"}\n'), ('rows.jsonl:2: column "prompt"', "not empty")
    ),
    "11 no answer": Fault(rows(GOOD + b'{"prompt": "1+1=", "answer": null}\n'), ('rows.jsonl:2: column "answer"',)),
    "13 row too long": Fault(
        rows(GOOD + b'{"prompt": "1+1=", "answer": "%s"}\n' % (b"2" * 200)),
        ("rows.jsonl:2: 205 tokens exceed the 128",),
    ),
    "14 not UTF-8": Fault(
        rows(GOOD + b'{"prompt": "1+1=", "answer": "\xff"}\n'), ("rows.jsonl:2: not a line of JSON in UTF-8",)
    ),
    "14 NUL": Fault(rows(GOOD + b'{"prompt": "1\0+1=", "answer": "2"}\n'), ("rows.jsonl:2: not a line of JSON",)),
}


# Folders of a model


def model(change: Callable[[Path], object]) -> Callable[[pytest.MonkeyPatch], list[str]]:
    def provoke(_: pytest.MonkeyPatch) -> list[str]:
        shutil.copytree(locate_model("nano"), "model")
        change(Path("model"))
        return [*TRAIN, "--model", "./model", "--task", "arithmetic:easy"]

    return provoke


def setting(name: str, **values: object) -> Callable[[Path], None]:
    """In one of the model's JSON files; None removes it."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        content |= values
        kept = {key: value for key, value in content.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return change


def several(*changes: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def one_more_token(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 19, "content": "«more»"})
    (folder / "tokenizer.json").write_text(json.dumps(content))


def ruined_header(folder: Path) -> None:
    """One letter of the first tensor's entry in the list of tensors."""
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content.replace(b"data_offsets", b"data_offsetz", 1))


def weights_not_finite(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-4:] = b"\0\0\xc0\x7f"  # nan
    (folder / "model.safetensors").write_bytes(content)


REMOTE = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}


def code_did_not_run() -> None:
    assert not Path("ran").exists()


def stated(text: str) -> Callable[[], None]:
    def after() -> None:
        with Run.open(Path("runs"), "job", readonly=True) as run:
            assert [(row["kind"], row["text"]) for row in run.findings()] == [("assumed", text)]

    return after


NO_PAD = "./model has no pad token; none is needed, because nothing is padded"

FAULTS |= {
    "15 missing folder": Fault(
        typed("--model", "./nowhere"),
        ("field model: unknown model './nowhere'", "calculator, guess, nano, smollm2, tiny"),
    ),
    "15 unknown id": Fault(
        typed("--model", "some/where", "--task", "arithmetic:easy"), ("field model: cannot load 'some/where'",)
    ),
    "15 no config": Fault(model(lambda folder: (folder / "config.json").unlink()), ("field model", "no config.json")),
    "16 cut-off weights": Fault(
        model(cut("model.safetensors")),
        ("field model: model/model.safetensors is damaged: 204804 bytes, expected 409608",),
    ),
    "16 empty weights": Fault(
        model(written("model.safetensors", b"")), ("field model: model/model.safetensors is damaged",)
    ),
    "16 weights with a ruined header": Fault(model(ruined_header), ("field model", "model.safetensors")),
    "16 weights of another format": Fault(
        model(lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin")),
        ("field model: model has no weights in *.safetensors, the only format that is read",),
    ),
    "16 weights that are not finite": Fault(model(weights_not_finite), ("field model", "./model")),
    "16 cut-off config": Fault(model(cut("config.json")), ("field model: cannot load './model'", "config.json")),
    "16 config of another kind": Fault(
        model(written("config.json", b"[1, 2]")), ("field model: cannot load './model'",)
    ),
    "16 config that fits nothing": Fault(
        model(setting("config.json", hidden_size=63)), ("field model: cannot load './model'",)
    ),
    "16 unknown architecture": Fault(
        model(setting("config.json", model_type="novel")), ("field model: cannot load './model'", "novel")
    ),
    "16 cut-off tokenizer": Fault(model(cut("tokenizer.json")), ("field model: cannot load './model'",)),
    "16 tokenizer of another kind": Fault(
        model(written("tokenizer.json", b"{}")), ("field model: cannot load './model'",)
    ),
    "17 model with code of its own": Fault(
        model(
            several(
                setting("config.json", model_type="theirs", auto_map=REMOTE),
                written("theirs.py", b"open('ran', 'w')\n"),
            )
        ),
        ("field model: cannot load './model'", "custom code"),
        after=code_did_not_run,
    ),
    "18 no pad token": Fault(
        model(several(setting("config.json", pad_token_id=None), setting("tokenizer_config.json", pad_token=None))),
        (NO_PAD,),
        code=0,
        steps=6,
        after=stated(NO_PAD),
    ),
    "19 end token as text": Fault(
        model(setting("generation_config.json", eos_token_id="2")),
        ("field model: './model' has the end token '2'; set eos_token_id in generation_config.json",),
    ),
    "19 no end tokens": Fault(
        model(setting("generation_config.json", eos_token_id=[])),
        ("field model: './model' has the end token []; set eos_token_id in generation_config.json",),
    ),
    "19 end token out of range": Fault(
        model(setting("generation_config.json", eos_token_id=[2, 99_999])),
        ("field model: './model' has the end token [2, 99999]; set eos_token_id in generation_config.json",),
    ),
    "19 no end token": Fault(
        model(
            several(
                setting("config.json", eos_token_id=None),
                setting("generation_config.json", eos_token_id=None),
                setting("tokenizer_config.json", eos_token=None),
            )
        ),
        ("field model: './model' defines no end token (eos_token_id)",),
    ),
    "21 more tokens than embeddings": Fault(
        model(one_more_token), ("field model: the tokenizer of ./model has 20 tokens and the model 19 embeddings",)
    ),
}


# Tasks and rewards


def task(mine: type[Arithmetic], *more: str) -> Callable[[pytest.MonkeyPatch], list[str]]:
    def provoke(monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setitem(TASKS, "mine", lambda _: mine("easy"))
        return [*TRAIN, "--task", "mine", *more]

    return provoke


class WrongGolds(Arithmetic):
    """One of the problems drawn first has an answer its own check refuses."""

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        first, *rest = super().draw(step, count, seed)
        return [first, replace(rest[0], answer="(12"), *rest[1:]]

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        return {"correct": float(problem.answer.isdecimal())}


class TooFew(Arithmetic):
    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return super().draw(step, count, seed)[: 1 if step == 2 else None]


class NothingDrawn(Arithmetic):
    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return []


class LongPrompts(Arithmetic):
    def heldout(self) -> list[Problem]:
        first, second, *rest = super().heldout()
        return [first, replace(second, id="heldout/long", prompt="1+" * 60 + "1="), *rest]


class NothingHeldOut(Arithmetic):
    def heldout(self) -> list[Problem]:
        return []


class EmptyPrompt(Arithmetic):
    def heldout(self) -> list[Problem]:
        first, second, *rest = super().heldout()
        return [first, replace(second, id="heldout/empty", prompt=""), *rest]


def paying(reward: Any) -> type[Arithmetic]:
    """Rewards every completion of a training step with this, and everything else as it should be."""

    class Paying(Arithmetic):
        def score(self, problem: Problem, text: str) -> dict[str, float | None]:
            odd = problem.id == "train/1/2" and text != problem.answer
            return {"correct": reward} if odd else dict(super().score(problem, text))

    return Paying


class AllEqual(Arithmetic):
    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        return {"correct": 1.0}


def nothing_moved() -> None:
    with Run.open(Path("runs"), "job", readonly=True) as run:
        assert [row["updates"] for row in run.metrics()] == [0] * 6
        assert [row["zero_signal_groups"] for row in run.metrics()] == [1] * 6
    checkpoint = Checkpoints(Path("runs/job")).newest()
    assert checkpoint is not None
    before, after = load_policy("nano").weights(), load_policy(str(checkpoint.model)).weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Coloured(paying(float("nan"))):  # type: ignore[misc]
    """Its ids hold what a terminal would obey."""

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return [
            replace(problem, id=f"{problem.id}\x1b[31m\nsecond line") for problem in super().draw(step, count, seed)
        ]

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        return super().score(replace(problem, id=problem.id.partition("\x1b")[0]), text)


FAULTS |= {
    "10 problem without a prompt": Fault(task(EmptyPrompt), ("heldout/empty", "prompt")),
    "12 answer that fails its own check": Fault(
        task(WrongGolds),
        ("task arithmetic:easy: 1 of 20 gold answers do not pass their own check", "problem train/0/1, answer '(12'"),
    ),
    "12 nothing drawn": Fault(task(NothingDrawn), ("task arithmetic:easy: in step 0 draw was asked for",)),
    "12 too few drawn": Fault(
        task(TooFew),
        (
            "task arithmetic:easy: in step 2 draw was asked for",
            "problems and returned 1",
        ),
        steps=2,
    ),
    "13 prompt over the context": Fault(
        task(LongPrompts),
        ("field max_new_tokens: 1 prompts", "32 new tokens in the 128 positions", "heldout/long with 122"),
    ),
    "13 no room for new tokens": Fault(
        typed("--max-new-tokens", "120"), ("field max_new_tokens: 20 prompts", "128 positions")
    ),
    "09 nothing held out": Fault(task(NothingHeldOut), ("task arithmetic:easy: has no held-out problems",)),
    "25 reward that is no number": Fault(
        task(paying(float("nan"))),
        ("task arithmetic:easy, problem train/1/2, completion 0 ('", "part 'correct' is nan"),
        steps=1,
    ),
    "25 reward without end": Fault(
        task(paying(float("-inf"))),
        ("task arithmetic:easy, problem train/1/2, completion 0 ('", "part 'correct' is -inf"),
        steps=1,
    ),
    "26 reward of text": Fault(
        task(paying("1.0")),
        ("task arithmetic:easy, problem train/1/2, completion 0 ('", "part 'correct' is '1.0'"),
        steps=1,
    ),
    "28 all rewards equal": Fault(
        task(AllEqual, "--algorithm", "dr_grpo", "--lr", "0.01"), code=0, steps=6, after=nothing_moved
    ),
    "39 control characters in a message": Fault(
        task(Coloured), (r"train/1/2\x1b[31m", "second line, completion 0 ('", "part 'correct' is nan"), steps=1
    ),
}


# The machine


def no_space(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    return TRAIN


def no_space_later(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    written = 0

    def write(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_model(*arguments)

    monkeypatch.setattr("grpo.model.files.write_model", write)
    return [*TRAIN, "--evaluation.every", "0"]


def no_memory(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: 1_000_000)
    return TRAIN


def checkpoint_of_step(step: int) -> Callable[[], None]:
    def after() -> None:
        checkpoint = Checkpoints(Path("runs/job")).newest()
        assert checkpoint is not None
        assert (checkpoint.step, checkpoint.damage()) == (step, "")

    return after


FAULTS |= {
    "29 ruinous lr": Fault(
        typed("--lr", "1e6"),
        ("field lr: 3 steps in a row had a gradient that was not finite", "now 1e+06"),
        steps=4,
        warnings=4,
        after=checkpoint_of_step(2),
    ),
    "33 too little space": Fault(
        no_space, ("field system.runs", " has 1.0 MB free and the run needs about ", " MB; ", "--checkpoints.keep")
    ),
    "33 disk full": Fault(
        no_space_later,
        ("runs/job/checkpoints: the disk is full, step-000004 cannot be written; older ones are intact",),
        steps=6,
        after=checkpoint_of_step(2),
    ),
    "33 too little memory": Fault(
        no_memory, ("field model: training nano takes about ", " MB, and ", " are free on cpu; ")
    ),
    "15 no GPU": Fault(typed("--system.device", "cuda:7"), ("field system.device: cuda:7",)),
}


# A run that exists


def after_a_run(change: Callable[[pytest.MonkeyPatch], object], *more: str) -> Callable[..., list[str]]:
    def provoke(monkeypatch: pytest.MonkeyPatch) -> list[str]:
        assert main([*TRAIN, "--checkpoints.keep", "2"]) == 0
        change(monkeypatch)
        return [*TRAIN, *more]

    return provoke


def killed_in_a_save(_: pytest.MonkeyPatch) -> list[str]:
    trainer = Trainer(command(Path("runs").resolve()), Path().resolve(), Orders(kill_at="checkpoint.model", count=2))
    assert trainer.ended() == -signal.SIGKILL
    return TRAIN


def flipped(_: pytest.MonkeyPatch) -> None:
    file = Path("runs/job/checkpoints/step-000006/model/model.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damaged_record(_: pytest.MonkeyPatch) -> None:
    """Zeros where the completions are."""
    db = sqlite3.connect("runs/job/run.db")
    [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'completions'").fetchone()
    [size] = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with open("runs/job/run.db", "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


def other_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Arithmetic.heldout
    monkeypatch.setattr(Arithmetic, "heldout", lambda self: real(self)[5:])


HELD: list[RunLock] = []


def another_trainer(_: pytest.MonkeyPatch) -> None:
    HELD.append(RunLock(Path("runs/job")))


class Interrupting(Arithmetic):
    """Somebody presses Ctrl-C in the third step."""

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        if problem.id == "train/2/0" and not Path("pressed").exists():
            Path("pressed").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return dict(super().score(problem, text))


def no_record(_: pytest.MonkeyPatch) -> list[str]:
    Path("runs/job").mkdir(parents=True)
    Path("runs/job/notes.txt").write_text("mine")
    return TRAIN


def torn_record(_: pytest.MonkeyPatch) -> list[str]:
    Path("runs/job").mkdir(parents=True)
    Path("runs/job/run.db").write_bytes(b"not a record" * 500)
    return TRAIN


def fine_tuned(_: pytest.MonkeyPatch) -> list[str]:
    Path("rows.jsonl").write_bytes(GOOD * 4)
    settings = ["--run", "job", "--steps", "2", "--batch-size", "2", "--system.device", "cpu", "--quiet"]
    assert main(["sft", "nano", "rows.jsonl", *settings]) == 0
    return TRAIN


DAMAGED = "checkpoint step-000006 is damaged: runs/job/checkpoints/step-000006/"

FAULTS |= {
    "30 killed in a save": Fault(killed_in_a_save, code=0, steps=6, after=checkpoint_of_step(6)),
    "31 bit flipped": Fault(
        after_a_run(flipped),
        (f"{DAMAGED}model/model.safetensors does not have the content that was written",),
        code=0,
        steps=6,
        after=checkpoint_of_step(6),
    ),
    "31 record damaged": Fault(after_a_run(damaged_record), ("field run: runs/job/run.db", "malformed")),
    "32 optimizer deleted": Fault(
        after_a_run(lambda _: Path("runs/job/checkpoints/step-000006/optimizer.safetensors").unlink()),
        (f"{DAMAGED}optimizer.safetensors is missing",),
        code=0,
        steps=6,
        after=checkpoint_of_step(6),
    ),
    "34 another setting": Fault(
        after_a_run(lambda _: None, "--temperature", "0.9"),
        ("field resume: job began with other inputs: temperature was 1.0, is 0.9;", "--checkpoints.allow-change"),
        steps=6,
    ),
    "34 fewer steps": Fault(
        after_a_run(lambda _: None, "--steps", "5"), ("field steps: job has already taken 6 steps",), steps=6
    ),
    "34 not asked to go on": Fault(
        after_a_run(lambda _: None, "--no-resume"), ("field run: job exists", "--resume", "--run OTHER"), steps=6
    ),
    "35 other problems": Fault(
        after_a_run(other_problems),
        ("field resume: job began with other inputs: problems: held-out problems changed",),
        steps=6,
    ),
    "36 two trainers": Fault(
        after_a_run(another_trainer),
        (f"field run: job is being trained by process {os.getpid()}",),
        steps=6,
        after=lambda: HELD.pop().close(),
    ),
    "37 Ctrl-C": Fault(
        task(Interrupting),
        ("stopping after this step with a checkpoint; a second signal stops at once",),
        code=130,
        steps=3,
        after=checkpoint_of_step(3),
    ),
    "40 folder that is no run": Fault(no_record, ("field run: there is no run job in runs",)),
    "40 record that is none": Fault(torn_record, ("field run: runs/job/run.db cannot be read as a run record",)),
    "40 run of fine-tuning": Fault(fine_tuned, ("field", "job"), steps=2),
}


class Listed(logging.Handler):
    """What a library logs reaches stderr past pytest; here it is kept, to be none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    expected = FAULTS[fault]
    monkeypatch.chdir(tmp_path)
    argv = expected.provoke(monkeypatch)
    before = files(Path("runs"))
    capsys.readouterr()
    logged = Listed()
    logging.getLogger("transformers").addHandler(logged)
    try:
        assert main(argv) == expected.code
    finally:
        logging.getLogger("transformers").removeHandler(logged)
    error = capsys.readouterr().err
    lines = error.splitlines()
    assert len(lines) == expected.warnings + bool(expected.says), error
    assert all(line.startswith("grpo: ") and line.isprintable() for line in lines)
    for fragment in expected.says:
        assert fragment in lines[-1]
    assert logged.lines == [], "more than one line for one fault"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    if expected.steps:
        check_whole(Path("runs"), expected.steps)
    else:
        assert files(Path("runs")) == before, "what is refused before the first step leaves nothing"
    expected.after()


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_whole(runs: Path, steps: int) -> None:
    """Its steps are there without a gap, each with all its completions, and its checkpoints are whole."""
    [path] = runs.iterdir()
    with Run.open(runs, path.name, readonly=True) as run:
        assert [row["step"] for row in run.metrics()] == list(range(steps))
        if run.kind == "grpo":
            assert run.summary()["completions"] == steps * 4 * 4
    db = sqlite3.connect(path / "run.db")
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    found = [entry.name for entry in path.glob("checkpoints/*") if not entry.name.startswith("damaged-")]
    assert all(name.startswith("step-") for name in found)
    assert all(checkpoint.damage() == "" for checkpoint in Checkpoints(path)._all())


# Anything at all


FIELDS = sorted(flags.leaves(Config))
TEXTS = st.text(st.characters(), max_size=12)
ODD_NUMBERS = st.sampled_from(["1e400", "-0", "0x10", "1_000", "１２", "nan", "-inf", "9" * 400])
NUMBERS = st.one_of(st.integers(1, 9), st.integers(), st.floats(), ODD_NUMBERS).map(str)
WORDS = st.sampled_from([*FIELDS, *(name.rpartition(".")[2] for name in FIELDS), "loss", "system", "top_p"])
VALUES = st.one_of(NUMBERS, TEXTS, WORDS, st.sampled_from(["true", "false", "", "[]", '"1"', "tiny", "a/b", "grpo"]))
NAMES = st.one_of(WORDS, TEXTS, WORDS.map("no-{}".format), WORDS.map(lambda word: word.replace("_", "-")))
RIGHT = st.sampled_from(
    ["--steps 3", "--lr=1e-4", "--quiet", "--no-resume", "--loss.beta 0", "--model nano", "--seed 5"]
)
TOKENS = st.one_of(
    RIGHT.map(str.split),
    st.builds(lambda name, value: [f"--{name}", value], NAMES, VALUES),
    st.builds(lambda name, value: [f"--{name}={value}"], NAMES, VALUES),
    st.builds(lambda name: [f"--{name}"], NAMES),
    VALUES.map(lambda value: [value]),
)
KEYS = st.one_of(NAMES, TEXTS.map(json.dumps), st.builds("{}.{}".format, WORDS, WORDS))
LINES = st.one_of(
    st.sampled_from(["steps = 3", "lr = 1e-4", "loss.beta = 0.1", "[loss]", "clip_low = 0.1", "# note", ""]),
    st.builds("{} = {}".format, KEYS, st.one_of(VALUES, VALUES.map(json.dumps))),
    st.builds("[{}]".format, KEYS),
    st.text(st.sampled_from(string.printable), max_size=20),
    TEXTS,
)
RECIPES = st.one_of(
    st.binary(max_size=60),
    st.lists(LINES, max_size=5).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")),
)
NOT_MISTAKES = {"--help", "-h", "--debug"}
"""Help ends the program, and --debug asks for the traceback."""


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(TOKENS, max_size=3), recipes=st.lists(RECIPES, max_size=2))
def test_random_flags_and_recipes_never_raise(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[list[str]], recipes: list[bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "recipes"
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number}.toml" for number in range(len(recipes))]
    for file, content in zip(files, recipes, strict=True):
        file.write_bytes(content)
    typed = [token for group in tokens for token in group if token not in NOT_MISTAKES]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(["train", *typed, *map(str, files), "--dry-run"])
    event(f"exit {code}")
    if code == 0:
        assert error.getvalue() == ""
        assert out.getvalue().startswith("model = ")
    else:
        assert code == 2
        assert out.getvalue() == ""
        [line] = error.getvalue().splitlines()
        assert line.startswith("grpo: ")
        assert line.isprintable()
