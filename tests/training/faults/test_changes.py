"""A resume with changed inputs is refused, naming the difference; other settings may change."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from grpo.cli.main import main
from grpo.model.hub import locate_model
from grpo.record.store import Run
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from helpers.faults import Whole, findings, last_step, status, tree
from helpers.trainer import command, contents

TASK = """
from grpo.tasks.arithmetic import Arithmetic

class Mine(Arithmetic):
    def __init__(self, _):
        super().__init__("easy")
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a task and a run of two steps."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(locate_model("nano"), folder / "model")
    (folder / "task.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        load_mine(patch)
        assert main(MINE) == 0
    return folder


MINE = [*command(Path("runs"), "job", "--model", "./model", "--task", "mine"), "--steps", "2"]


def load_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of task.py in the working directory, as `mine`."""
    spec = importlib.util.spec_from_file_location("mine", Path("task.py").resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mine", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(TASKS, "mine", module.Mine)


@pytest.fixture
def again(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in, with its task loaded."""
    folder = tmp_path / "again"
    shutil.copytree(begun, folder)
    monkeypatch.chdir(folder)
    load_mine(monkeypatch)
    return folder


def change_a_weight(_: pytest.MonkeyPatch) -> None:
    content = bytearray(Path("model/model.safetensors").read_bytes())
    content[-1] ^= 1
    Path("model/model.safetensors").write_bytes(content)


TEMPLATES = ("chat_template.jinja", "additional_chat_templates/tools.jinja")


def add_chat_templates(_: pytest.MonkeyPatch) -> None:
    for name in TEMPLATES:
        Path("model", name).parent.mkdir(exist_ok=True)
        Path("model", name).write_text("{{ messages[0].content }}")


def change_the_end_token(_: pytest.MonkeyPatch) -> None:
    file = Path("model/generation_config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": 1}))


def change_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("task.py").write_text(TASK + "# the same, by another text\n")
    load_mine(monkeypatch)


def change_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Arithmetic.heldout
    monkeypatch.setattr(Arithmetic, "heldout", lambda self: real(self)[1:])


def change_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpo.training.fingerprint

    real = grpo.training.fingerprint.metadata.version
    versions = SimpleNamespace(version=lambda name: "9.9" if name == "torch" else real(name))
    monkeypatch.setattr(grpo.training.fingerprint, "metadata", versions)


def change_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")


CHANGES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str], str]] = {
    "a setting": (lambda _: None, ["--lr", "0.002"], "lr was 0.001, is 0.002"),
    "a nested setting": (lambda _: None, ["--loss.beta", "0.5"], "loss.beta was 0.04, is 0.5"),
    "two settings": (lambda _: None, ["--seed", "2", "--group-size", "5"], "group_size was 4, is 5; seed was 1, is 2"),
    "the machine": (lambda _: None, ["--system.deterministic"], "system.deterministic was False, is True"),
    "the weights": (change_a_weight, [], "model: model.safetensors changed; restore"),
    "a chat template": (add_chat_templates, [], f"model: {TEMPLATES[1]} added, {TEMPLATES[0]} added; restore"),
    "the end token": (change_the_end_token, [], "model: generation_config.json changed; restore"),
    "a vocabulary": (lambda _: Path("model/merges.txt").write_text("a b"), [], "model: merges.txt added; restore"),
    "the task's code": (change_the_task, [], "task code: task.py changed; restore"),
    "the problems": (change_the_problems, [], "problems: held-out problems changed; restore"),
    "a version": (change_a_version, [], f"torch was '{torch.__version__.partition('+')[0]}"),
    "Python": (change_python, [], f"python was '{sys.version.split()[0]}', is '3.99.0'"),
}


ADVICE = "; restore them, start another run (--run OTHER), or accept the change (--checkpoints.allow-change)"


@pytest.mark.parametrize("change", CHANGES)
def test_a_resume_that_would_change_the_run_is_refused_unless_accepted(
    again: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    make, flags, says = CHANGES[change]
    make(monkeypatch)
    before = tree(again / "runs")
    capsys.readouterr()
    argv = [*MINE, "--steps", "3", *flags]
    assert main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo: field resume: job began with other inputs: {says}")
    assert line.endswith(ADVICE)
    differences = line.removeprefix("grpo: field resume: job began with other inputs: ").removesuffix(ADVICE)
    assert tree(again / "runs") == before

    assert main([*argv, "--checkpoints.allow-change"]) == 0
    run = again / "runs" / "job"
    assert (status(run), last_step(run)) == ("finished", 2)
    assert [text for kind, _, text in findings(run) if kind == "changed"] == differences.split("; ")
    torch.use_deterministic_algorithms(False)


def test_settings_that_leave_the_numbers_alone_are_no_change(again: Path, whole: Whole) -> None:
    (again / "runs").rename(again / "moved")
    flags = "--evaluation.every 2 --evaluation.problems 7 --checkpoint-every 1 --checkpoints.keep 3 --no-quiet"
    argv = [*MINE, *flags.split(), "--system.runs", "moved", "--system.token_groups", "3", "--steps", "6"]
    assert main(argv) == 0
    run = again / "moved" / "job"
    assert findings(run) == []
    found, expected = contents(run), whole()
    for name in ("metrics", "completions", "groups", "files"):
        assert found[name] == expected[name]


def test_more_steps_are_no_change(again: Path, whole: Whole) -> None:
    assert main([*MINE, "--steps", "6"]) == 0
    assert findings(again / "runs" / "job") == []
    found, expected = contents(again / "runs" / "job"), whole()
    for name in ("metrics", "completions", "groups", "token_arrays", "files"):
        assert found[name] == expected[name]


def test_the_line_that_resumes_an_extended_run_repeats_its_last_command(
    again: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command has too few steps by then, and lacks a change that was accepted."""
    change_the_task(monkeypatch)
    argv = [*MINE, "--steps", "3", "--checkpoints.allow-change"]
    monkeypatch.setattr("sys.argv", ["grpo", *argv])
    assert main(argv) == 0
    with Run.open(again / "runs", "job") as run:
        run.set_status("stopped")
    capsys.readouterr()
    assert main(["runs", "job"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith(" --steps 3 --checkpoints.allow-change --run job --resume")
    assert main(shlex.split(line.partition(" grpo ")[2])) == 0


def test_files_of_a_checkpoint_may_be_cut(again: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as cut:
        cut.setattr("grpo.model.tensorfile.LARGEST_FILE", 100_000)
        assert main([*MINE, "--steps", "4"]) == 0
        assert main(["export", "job", "out"]) == 0
        assert main(["sample", "out", "1+1=", "-n", "1"]) == 0
    assert list(again.glob("runs/job/checkpoints/step-000004/*.safetensors")) != []
    assert not (again / "runs/job/checkpoints/step-000004/optimizer.safetensors").exists()
    assert main([*MINE, "--steps", "6"]) == 0
    assert findings(again / "runs" / "job") == []
    found, expected = contents(again / "runs" / "job"), whole()
    for name in ("metrics", "completions", "groups", "token_arrays", "files"):
        assert found[name] == expected[name]


def test_fewer_steps_than_taken_are_refused(again: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(again / "runs")
    assert main([*MINE, "--steps", "1"]) == 2
    assert capsys.readouterr().err == ("grpo: field steps: job has already taken 2 steps; raise --steps\n")
    assert tree(again / "runs") == before


def test_a_task_typed_at_a_prompt_can_be_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no file to take a fingerprint of."""
    module = ModuleType("typed")
    monkeypatch.setitem(sys.modules, "typed", module)
    exec(TASK, module.__dict__)
    monkeypatch.setitem(TASKS, "mine", module.Mine)
    for steps in ("1", "2"):
        assert main(command(tmp_path, "job", "--task", "mine", "--steps", steps)) == 0
    assert findings(tmp_path / "job") == []
