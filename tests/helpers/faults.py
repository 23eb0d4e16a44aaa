"""Uninterrupted runs, and what a run that met a fault must have in common with them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from grpo.record.store import Run
from helpers.trainer import Ranks, Trainer, assert_same, command, contents

ALL = os.environ.get("GRPO_FAULTS") == "all"
VARIANTS = {"one update": (), "four updates": ("--optimizer.epochs", "2", "--optimizer.minibatches", "2")}


class Whole:
    """Uninterrupted runs, made when first asked for: what they left, and how long they took."""

    def __init__(self, folder: Path):
        self.folder = folder
        assert Trainer(["runs", "--runs", str(folder)], folder).ended() == 0  # now the server has started
        self.made: dict[tuple[str, ...], tuple[Path, dict[str, Any], float]] = {}

    def __call__(self, *more: str, ranks: int = 1) -> dict[str, Any]:
        return self.run(*more, ranks=ranks)[1]

    def path(self, *more: str, ranks: int = 1) -> Path:
        return self.run(*more, ranks=ranks)[0]

    def seconds(self, *more: str) -> float:
        return self.run(*more)[2]

    def run(self, *more: str, ranks: int = 1) -> tuple[Path, dict[str, Any], float]:
        key = (str(ranks), *more)
        if key not in self.made:
            path = self.folder / f"whole-{len(self.made)}"
            started = time.monotonic()
            trainers = Ranks(ranks, command(self.folder, path.name, *more), self.folder)
            assert trainers.ended() == [0] * ranks, trainers.said()
            self.made[key] = path, contents(path), time.monotonic() - started
        return self.made[key]


def findings(run: Path) -> list[tuple[str, int | None, str]]:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return [(row["kind"], row["step"], row["text"]) for row in record.findings()]


def status(run: Path) -> str:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return record.summary()["status"]


def last_step(run: Path) -> int | None:
    with Run.open(run.parent, run.name, readonly=True) as record:
        return record.last_step()


def assert_resumed(run: Path, expected: dict[str, Any]) -> None:
    """Finished as if nothing had happened; that there was no checkpoint yet is all that may have been noted."""
    assert_same(run, expected)
    assert status(run) == "finished"
    for kind, _, text in findings(run):
        assert (kind, text) == (
            "damaged",
            f"{run.name} has no complete checkpoint: it starts again from the first step",
        )


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which holds the number of the last process, and the index that readers share."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name not in ("lock", "run.db-shm")}
