"""The Makefile: which packages each command installs, and when."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def installs(checkout: Path, target: str) -> list[str]:
    """The packages that `make TARGET` would install, in order."""
    done = subprocess.run(["make", "-n", target], cwd=checkout, capture_output=True, text=True, check=True)
    return [line.split("constraints.txt ")[1] for line in done.stdout.splitlines() if "pip install" in line]


def stamp(checkout: Path, name: str, seconds: int) -> None:
    """The stamp of a set of packages, this much newer than the files that the set depends on."""
    (checkout / ".venv" / name).touch()
    time = (checkout / "pyproject.toml").stat().st_mtime + seconds
    os.utime(checkout / ".venv" / name, (time, time))


TORCH = """"$(grep '^torch==' constraints.txt)\""""
TRAINING, TESTING = [TORCH, '-e ".[lab]"'], ['-e ".[dev]"']


def test_training_installs_no_test_tools(checkout: Path) -> None:
    assert installs(checkout, "train") == installs(checkout, "install") == TRAINING


@pytest.mark.parametrize("target", ["test", "check", "test-lab", "faults"])
def test_checks_install_the_rest(checkout: Path, target: str) -> None:
    assert installs(checkout, target) == TRAINING + TESTING
    stamp(checkout, ".ready-train", 1)
    assert installs(checkout, target) == TESTING
    stamp(checkout, ".ready-dev", 2)
    assert installs(checkout, target) == []
    assert installs(checkout, "train") == [], "nothing again after the tests"


def test_new_requirements_are_installed_for_both(checkout: Path) -> None:
    stamp(checkout, ".ready-train", -2)
    stamp(checkout, ".ready-dev", -1)
    assert installs(checkout, "train") == TRAINING
    assert installs(checkout, "test") == TRAINING + TESTING


def test_every_requirement_is_pinned() -> None:
    """constraints.txt holds both sets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in wanted} - {"grpo-lab"}  # type: ignore[index]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned
