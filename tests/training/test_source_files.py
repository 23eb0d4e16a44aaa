"""The modules under a folder that a reward or a task imports: found without importing, hashed, named by a resume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo.cli.main import main
from grpo.training.bytecode import code_text
from grpo.training.source_files import files_of, own_files

FILES = {
    "mine.py": "import os, numpy, helper\nfrom pkg.sub import x\ndef f(problem, text):\n    from late import y\n",
    "helper.py": "import deeper\nraise RuntimeError('never imported here')\n",
    "deeper.py": "import mine  # a circle\n",
    "late.py": "import spaced.inner, broken\n",
    "broken.py": "def (\n",
    "unused.py": "",
    "pkg/__init__.py": "from . import other\n",
    "pkg/sub.py": "from .other import z\nfrom ..outside import w\nfrom pkg import unnamed\n",
    "pkg/other.py": "",
    "pkg/unused.py": "",
    "spaced/inner.py": "",  # a folder without __init__.py
}
TRAIN = [
    *("train", "--model", "nano", "--system.device", "cpu", "--prompts-per-step", "2", "--group-size", "2", "--quiet"),
    *("--max-new-tokens", "8", "--run", "job", "--evaluation.problems", "4", "--evaluation.probes", "0"),
    *("--scoring.workers", "1"),
]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_modules_under_the_folder_are_found_through_each_other(tmp_path: Path) -> None:
    write(tmp_path / "project", FILES)
    write(tmp_path, {"outside.py": ""})
    expected = {*FILES} - {"unused.py", "pkg/unused.py"}
    found = own_files(tmp_path / "project" / "mine.py")
    assert {*found} == expected
    assert all(path == tmp_path / "project" / name for name, path in found.items())
    assert {*files_of(str(tmp_path / "project" / "mine.py"))} == {str(tmp_path / "project" / name) for name in expected}


def test_a_symbolic_link_stands_for_its_target_and_the_modules_beside_that(tmp_path: Path) -> None:
    write(tmp_path / "project", FILES)
    (tmp_path / "link.py").symlink_to(tmp_path / "project" / "mine.py")
    assert files_of(str(tmp_path / "link.py")) == files_of(str(tmp_path / "project" / "mine.py")) != {}


def test_a_module_of_a_project_has_its_package_and_an_installed_one_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"own_project/__init__.py": "", "own_project/rewards.py": "from own_project import tools\n"})
    write(tmp_path, {"own_project/tools.py": "from .deep import thing\n", "own_project/deep/thing.py": ""})
    monkeypatch.syspath_prepend(tmp_path)
    assert [*files_of("own_project.rewards")] == [
        *("own_project/__init__.py", "own_project/deep/thing.py", "own_project/rewards.py", "own_project/tools.py")
    ]
    assert [*files_of("numpy.linalg")] == ["numpy.linalg"]
    assert [*files_of("grpo.rewards.format")] == ["grpo.rewards.format"]
    assert files_of("nothing_of_this_name") == files_of("absent.py") == {}


@pytest.mark.parametrize("source", ["mine.py", "task"])
def test_a_resume_names_the_module_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """Of a reward's file, and of a task's."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {f"{source}_helper.py".replace(".py_", "_"): "def size(text):\n    return len(text)\n"})
    if source == "task":
        write(
            tmp_path,
            {
                "sums.py": "from task_helper import size\nfrom grpo.tasks.arithmetic import Arithmetic\n"
                "class Sums(Arithmetic):\n    name = 'sums'\n    trusted = False\n"
                "    def __init__(self): super().__init__('easy')\n"
                "    def score(self, problem, text): return {'size': 1.0 + size(text)}\n"
            },
        )
        arguments, code, changed = ["--task", "sums.py"], "task code", "task_helper.py"
    else:
        write(tmp_path, {"mine.py": "from mine_helper import size\ndef f(problem, text):\n    return size(text)\n"})
        arguments, code, changed = ["--reward", "mine.py:f"], "reward code", "mine_helper.py"
    assert main([*TRAIN, *arguments, "--steps", "1"]) == 0
    (tmp_path / changed).write_text("def size(text):\n    return 2 * len(text)\n")
    assert main([*TRAIN, *arguments, "--steps", "2", "--resume"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"job began with other inputs: {code}: {changed} changed; restore" in line


def test_a_function_handed_over_is_described_with_the_modules_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of another module of the folder, and a module by name; not what nothing refers to."""
    monkeypatch.syspath_prepend(tmp_path)
    main_file = (
        "import own_b\nfrom own_a import size\ndef f(problem, text):\n    return size(text) + own_b.size(text)\n"
    )

    def described(a: int, b: int, c: int) -> str:
        for name, value in {"own_a": a, "own_b": b, "own_c": c}.items():
            (tmp_path / f"{name}.py").write_text(f"def size(text):\n    return {value}\n")
        (tmp_path / "own_main.py").write_text(main_file)
        for name in ("own_main", "own_a", "own_b"):
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return code_text(__import__("own_main").f)

    first = described(1, 1, 1)
    assert described(1, 1, 2) == first
    assert described(2, 1, 1) != first
    assert described(1, 2, 1) != first
