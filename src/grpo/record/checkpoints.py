"""Checkpoints of a run: folders checkpoints/step-000050 with everything needed to resume from there.

Files are written to a hidden folder, synced to the disk, hashed in a manifest, and the folder is renamed. Every hash is
checked before a checkpoint is used. A background thread writes, from a copy of the weights.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal as readable

from grpo.errors import DiskFullError, GrpoError
from grpo.kill_points import point

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a checkpoint, copied so that training can continue while it is written."""

    files: dict[str, bytes]
    """Config and tokenizer; with the weights they make a Hugging Face folder."""
    weights: dict[str, torch.Tensor]
    optimizer_tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    """Everything else the next step depends on, as JSON values."""
    extra_tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Further tensors by file: a critic, a refreshed reference."""

    def size(self) -> int:
        """Approximate bytes on the disk."""
        return sum(
            tensor.nbytes
            for tensors in (self.weights, self.optimizer_tensors, *self.extra_tensors.values())
            for tensor in tensors.values()
        )


@dataclass(frozen=True)
class Checkpoint:
    """A folder checkpoints/step-000050: model/ (a Hugging Face folder), optimizer.safetensors, state.json."""

    step: int
    """Number of steps the run had taken."""
    path: Path

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "state.json").read_text()))

    def has(self, name: str) -> bool:
        from grpo.model.tensorfile import index_of

        file = self.path / f"{name}.safetensors"
        return file.exists() or index_of(file).exists()

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Tensors of one file, or of the files that it was cut into: optimizer, critic or reference."""
        from grpo.model.tensorfile import load_tensors

        return load_tensors(self.path / f"{name}.safetensors")

    def damage(self) -> str:
        """The first damaged file and its damage; empty if every file has its size and hash."""
        try:
            listed = json.loads((self.path / MANIFEST).read_text())["files"]
            expected = {name: (entry["size"], entry["sha256"]) for name, entry in listed.items()}
        # Border: any program may have changed the file.
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return f"{self.path / MANIFEST} is missing or unreadable"
        present = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        for name, (size, sha256) in expected.items():
            if name not in present:
                return f"{self.path}/{name} is missing"
            file = self.path / name
            if file.stat().st_size != size:
                return f"{file} has {file.stat().st_size} bytes, not {size}"
            if _sha256(file) != sha256:
                return f"{file} does not have the content that was written"
        return ""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_path: Path, *, keep: int = 2):
        self.folder = run_path / "checkpoints"
        self.keep = keep
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._written: SimpleQueue[Checkpoint] = SimpleQueue()

    def save(self, step: int, take: Callable[[], Snapshot], also_keep: int | None = None) -> None:
        """Take a snapshot and start writing it; then delete all but the newest ones and that of step `also_keep`.

        Waits for the checkpoint before, whose memory the snapshot reuses. An error of that one is raised here.
        """
        self.wait()
        snapshot = take()
        with self._reporting(step):
            self.folder.mkdir(exist_ok=True)
            needed, free = snapshot.size(), shutil.disk_usage(self.folder).free
        if free < needed:
            raise self._disk_full(step, f" ({readable(needed)} needed, {readable(free)} free)")
        self._writing = self._writer.submit(self._write_or_clean_up, step, snapshot, also_keep)

    def wait(self) -> None:
        """Wait until nothing is being written. Raises the error of the write."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def settle(self) -> None:
        """Wait until nothing is being written; errors are ignored."""
        if self._writing is not None:
            self._writing.exception()

    def written(self) -> Iterator[Checkpoint]:
        """Checkpoints completed since the last call."""
        while not self._written.empty():
            yield self._written.get()

    def newest(self) -> Checkpoint | None:
        """The newest one, unchecked; None if there is none."""
        found = self._all()
        return found[-1] if found else None

    def newest_whole(self, report: Callable[[str], None], *, up_to: int | None = None) -> Checkpoint | None:
        """The newest undamaged one of at most `up_to` steps. Damaged ones are reported and renamed to damaged-step-…"""
        for checkpoint in reversed(self._all()):
            if up_to is not None and checkpoint.step > up_to:
                continue
            damage = checkpoint.damage()
            if not damage:
                return checkpoint
            aside = checkpoint.path.with_name(f"damaged-{checkpoint.path.name}")
            if aside.exists():
                shutil.rmtree(aside)
            checkpoint.path.rename(aside)
            report(f"checkpoint {checkpoint.path.name} is damaged: {damage}; renamed to {aside.name}")
        return None

    def before(self, step: int) -> Checkpoint | None:
        """The newest one of at most `step` steps, unchecked; None if there is none."""
        return next((checkpoint for checkpoint in reversed(self._all()) if checkpoint.step <= step), None)

    def at(self, step: int) -> Checkpoint | None:
        return next((checkpoint for checkpoint in self._all() if checkpoint.step == step), None)

    def _all(self) -> list[Checkpoint]:
        """Oldest first."""
        numbered = ((path.name.removeprefix("step-"), path) for path in self.folder.glob("step-*"))
        found = (Checkpoint(int(number), path) for number, path in numbered if number.isdecimal())
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def _write_or_clean_up(self, step: int, snapshot: Snapshot, also_keep: int | None) -> None:
        with self._reporting(step):
            try:
                self._write(step, snapshot)
                self._prune(also_keep)
            except OSError:
                shutil.rmtree(self._aside(step), ignore_errors=True)
                raise
        self._written.put(Checkpoint(step, self._final(step)))

    @contextmanager
    def _reporting(self, step: int) -> Iterator[None]:
        """Reports in one line what the disk refuses; the folder may have been moved, or have become read-only."""
        try:
            yield
        except OSError as error:  # border: the disk
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._disk_full(step) from error
            name = self._final(step).name
            raise GrpoError(f"{self.folder}: {name} cannot be written ({error}); older ones are intact") from error

    def _disk_full(self, step: int, numbers: str = "") -> DiskFullError:
        name = self._final(step).name
        return DiskFullError(
            f"{self.folder}: the disk is full, {name} cannot be written{numbers}; older ones are intact"
        )

    def _write(self, step: int, snapshot: Snapshot) -> None:
        from grpo.model.files import write_model
        from grpo.model.tensorfile import save_tensors

        aside, final = self._aside(step), self._final(step)
        for abandoned in self.folder.glob(".*-step-*"):  # of a run that was killed while writing
            shutil.rmtree(abandoned)
        (aside / "model").mkdir(parents=True)
        point("checkpoint.begun")
        write_model(aside / "model", snapshot.files, snapshot.weights)
        point("checkpoint.model")
        for name, tensors in {"optimizer": snapshot.optimizer_tensors, **snapshot.extra_tensors}.items():
            save_tensors(aside / f"{name}.safetensors", tensors)
        (aside / "state.json").write_text(json.dumps(snapshot.state))
        point("checkpoint.optimizer")
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        listed = {str(f.relative_to(aside)): {"size": f.stat().st_size, "sha256": _sha256(f)} for f in files}
        (aside / MANIFEST).write_text(json.dumps({"step": step, "files": listed}, indent=1))
        for path in (*files, aside / MANIFEST, aside / "model", aside):
            _fsync(path)
        point("checkpoint.manifest")
        if final.exists():
            _remove(final)
        aside.rename(final)
        _fsync(self.folder)
        point("checkpoint.renamed")

    def _prune(self, also_keep: int | None) -> None:
        for checkpoint in self._all()[: -self.keep]:
            if checkpoint.step != also_keep:
                _remove(checkpoint.path)
        point("checkpoint.pruned")

    def _final(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _aside(self, step: int) -> Path:
        return self.folder / f".writing-step-{step:06d}"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    """Sync a file or folder to the disk: a rename is safe only after that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Rename, then delete: a half-deleted folder is never taken for a checkpoint."""
    gone = path.rename(path.with_name(f".removing-{path.name}"))
    point("checkpoint.pruning")
    shutil.rmtree(gone)
