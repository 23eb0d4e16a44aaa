"""Provenance of a run: package versions, the git commit of the working directory, the command line."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

DISTRIBUTIONS = {"torch": "torch", "transformers": "transformers", "numpy": "numpy", "grpo": "grpo-lab"}
SECRET = re.compile("(token|key|secret|password)$", re.IGNORECASE)


def provenance() -> dict[str, Any]:
    """Plain values, to store as JSON: versions, git, command."""
    versions = {package: _version(distribution) for package, distribution in DISTRIBUTIONS.items()}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "git": _git(),
        "command": command(),
    }


def command() -> list[str]:
    """The command line of this process, to record."""
    return redacted(sys.argv)


def redacted(command: Sequence[str]) -> list[str]:
    """The command line without the values of options that sound like secrets.

    >>> redacted(["grpo", "train", "--hub-token", "hf_123", "--api_key=456", "--steps", "3"])
    ['grpo', 'train', '--hub-token', '…', '--api_key=…', '--steps', '3']
    """
    words, hide = [], False
    for word in command:
        name, equals, _ = word.partition("=")
        secret = bool(SECRET.search(name)) and name.startswith("-")
        words.append("…" if hide else f"{name}=…" if secret and equals else word)
        hide = secret and not equals
    return words


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # grpo, when it runs from a source tree
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's repository, and whether tracked files differ from it."""
    if shutil.which("git") is None:
        return None
    # --exclude hides tags, so that describe prints the commit.
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    answer = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"})
    if answer.returncode != 0:
        return None
    commit, _, dirty = answer.stdout.strip().partition("-")
    return {"commit": commit, "dirty": bool(dirty)}
