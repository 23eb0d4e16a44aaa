"""Folders of models: the user's cache, and checks of a Hugging Face folder before it is loaded."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo.errors import GrpoError

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""peft's two files."""


def cache() -> Path:
    """The folder of converted models: $GRPO_CACHE, or grpo under the user's cache folder."""
    parent = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GRPO_CACHE") or Path(parent) / "grpo")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder in the cache, so that what is finished there can be renamed into place. One process at a time
    has one: ranks that start together need the same model, and all but the first find it finished."""
    try:
        cache().mkdir(parents=True, exist_ok=True)
        held = os.open(cache(), os.O_RDONLY)
        scratch = tempfile.TemporaryDirectory(prefix=".unfinished-", dir=cache(), ignore_cleanup_errors=True)
    except OSError as error:  # border: a folder of the user
        why = f"cannot write to {cache()} ({error.strerror})"
        raise GrpoError(f"field model: {why}; set GRPO_CACHE to another folder") from error
    try:
        with suppress(OSError):  # border: a file system without locks; then several processes make the same
            fcntl.flock(held, fcntl.LOCK_EX)
        with scratch as name:
            yield Path(name)
    finally:
        os.close(held)


def digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remedy(folder: Path) -> str:
    """What to do about a damaged folder."""
    return f"delete {folder}, then it is made again" if folder.parent == cache() else "copy the folder again"


def adapter_base(folder: Path) -> str | None:
    """The base model of the adapter in this folder; None if the folder has no adapter."""
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError) as error:  # border: a missing or malformed file
        raise GrpoError(f"field model: {file} cannot be read as JSON: {error}") from error
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str) or not base or Path(base).resolve() == folder.resolve():
        raise GrpoError(f"field model: {file} names no model in base_model_name_or_path; write the base model there")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise GrpoError(f"field model: {folder} has no {ADAPTER_WEIGHTS}, the only adapter format that is read")
    return base


def check_weight_files(folder: Path) -> None:
    """Raises an error that names the file and its sizes if a weights file is incomplete."""
    if not (folder / "config.json").is_file():
        raise GrpoError(f"field model: {folder} has no config.json, so it is not a Hugging Face model folder")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise GrpoError(f"field model: {folder} has no weights in *.safetensors, the only format that is read")
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header_size = int.from_bytes(stream.read(8), "little")
            header = stream.read(header_size) if 8 + header_size <= size else b""
        end = _last_byte(header)
        if not end or size != 8 + header_size + end:
            expected = 8 + header_size + end
            raise GrpoError(f"field model: {file} is damaged: {size} bytes, expected {expected}; {remedy(folder)}")


def _last_byte(header: bytes) -> int:
    """End of the last tensor, from the header of a safetensors file; 0 if it cannot be read."""
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        return max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return 0
