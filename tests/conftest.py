"""The environment of every test, and fixtures: architectures, a recipe, a small disk, a browser."""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach out
# Bit-for-bit tests compare runs of this process with one another; one thread also keeps small models fast.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run as plain Python where there is no GPU
    if find_spec("triton"):
        from helpers.interpreter import patch_once_per_launch

        patch_once_per_launch()

from helpers.policies import ARCHITECTURES  # after the environment is set, since it imports transformers


@pytest.fixture(autouse=True)
def without_the_last_doctest_value() -> None:
    """A doctest leaves its last value in `builtins._`; tyro hashes all of builtins and fails where it is a list."""
    vars(builtins).pop("_", None)


@pytest.fixture(params=list(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser that opens pages. They share what was fetched once; all state of the lab is in a page's address."""
    from helpers.visit import AXE, CHROMIUM

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    if CHROMIUM is None:
        pytest.fail("no Chromium here: install the package chromium, or name one in GRPO_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context()
        context.set_default_timeout(60_000)
        context.add_init_script(path=AXE)
        yield context
        browser.close()


@pytest.fixture(scope="session")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A lab without runs of its own."""
    from helpers.visit import serving

    yield from serving(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab as a static site, built once for all xdist workers, whose folders lie side by side."""
    from grpo.lab.site.build import build

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, built = shared / "site", shared / "site-is-built"
    with FileLock(shared / "site.lock"):
        if not built.exists():
            build(folder, lambda line: None)
            built.touch()
    return folder


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a recipe and returns its name as the user types it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "recipe.toml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command, so no small disk to fill")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    tried = subprocess.run(mount, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"mounting a small disk is not allowed here: {tried.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
