"""The recorded run that ships with the package, read once."""

from __future__ import annotations

from functools import cache
from typing import Any

from grpo.lab.catalogue import RECORDINGS
from grpo.record.store import Run

NAME = "tiny-arithmetic"


def opened() -> Run:
    """The open run; the caller closes it."""
    return Run.open(RECORDINGS, NAME, readonly=True)


@cache
def groups() -> list[list[dict[str, Any]]]:
    """The groups of every step, completions included."""
    with opened() as run:
        return [run.groups(step) for step in range((run.last_step() or 0) + 1)]


@cache
def rewards() -> list[list[list[float]]]:
    """The token arrays by step and group."""
    return [[[done["reward"] for done in group["completions"]] for group in step] for step in groups()]


@cache
def evals() -> list[dict[str, Any]]:
    with opened() as run:
        return run.evals()


@cache
def config() -> dict[str, Any]:
    with opened() as run:
        return run.config
