"""The jobs of a supervisor, and the workers that do them."""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from grpo.rewards.pool.invoke import Outcome, Request


@dataclass(eq=False)
class Batch:
    """Outcomes by reward, group and completion; None where one is missing."""

    outcomes: list[list[list[Outcome | None]]]
    missing: int
    requested: bool = False
    """The trainer waits for it."""


@dataclass(frozen=True)
class Job:
    """Completions of one group for one reward."""

    batch: int
    reward: int
    group: int
    rows: tuple[int, ...]
    request: Request
    together: bool
    """In a single call."""

    @property
    def key(self) -> str:
        """Names the episode to be answered; empty where completions are scored."""
        return self.request.histories[0].key if self.request.histories else ""


@dataclass(eq=False)
class Worker:
    pid: int
    connection: Connection
    output: int
    """File descriptor of its stdout and stderr."""
    ended: int
    """File descriptor that becomes readable when the process ends; -1 where the system has none."""
    current_row: mmap.mmap
    """Memory shared with the worker: the row of its current call."""
    job: Job | None = None
    remaining: list[int] = field(default_factory=list)
    """Rows of the job without an outcome."""
    seconds: float = 0.0
    """Time limit of the call."""
    deadline: float = 0.0
    printed: bytes = b""
    keeps: set[str] = field(default_factory=set)
    """Keys of the episodes whose environments live there."""
    waiting: deque[Job] = field(default_factory=deque)
    """Jobs of these episodes."""

    def failed_row(self) -> int:
        """The row of the last call, of those without an outcome."""
        row = int.from_bytes(self.current_row[:], "little")
        rows = self.job.rows if self.job else ()
        return rows[row] if row < len(rows) and rows[row] in self.remaining else self.remaining[0]
