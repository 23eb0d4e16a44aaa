"""The border to the disk: folders and files that people name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.errors import GrpoError


@contextmanager
def writing(field: str, path: Path) -> Iterator[None]:
    """Tells in one line why the path cannot be written."""
    try:
        yield
    except OSError as problem:  # border: a disk and its permissions
        raise GrpoError(
            f"field {field}: cannot write {path}: {problem.strerror or problem}; name another {field}"
        ) from problem


def check_writable(folder: Path) -> None:
    """Raises if files cannot be made in the folder, or in the nearest one above it that exists."""
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(None, f"no permission to write in {nearest}")
