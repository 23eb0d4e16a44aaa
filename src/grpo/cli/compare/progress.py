"""Progress of a comparison: a line per running run, and the number of finished ones."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grpo.cli.compare.jobs import Job
from grpo.cli.terminal.report import clock
from grpo.errors import GrpoError
from grpo.record.store import Run

SECONDS_BETWEEN_FRAMES = 2.0


class ProgressView:
    """In a terminal one frame, redrawn in place; in a log one line per finished run."""

    def __init__(self, jobs: Sequence[Job], *, quiet: bool) -> None:
        self.total = len(jobs)
        self.started, self.drawn_at = time.monotonic(), 0.0
        self.reported: set[str] = set()
        console = Console(stderr=True)  # only the result goes to stdout
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self.quiet = quiet

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def update(self, running: Sequence[Job], done: Sequence[Job]) -> None:
        if self.quiet:
            return
        if self.live is None:
            for job in done:
                if job.name not in self.reported:
                    self.reported.add(job.name)
                    print(f"{len(self.reported)}/{self.total} {job.name} done", file=sys.stderr, flush=True)
        elif time.monotonic() >= self.drawn_at + SECONDS_BETWEEN_FRAMES:
            self.drawn_at = time.monotonic()
            head = (
                f"{len(done)} of {self.total} runs done, {len(running)} running, {clock(self.drawn_at - self.started)}"
            )
            lines = [head, *(f"  {job.name:<40} {progress_of(job)}" for job in running)]
            self.live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)


def progress_of(job: Job) -> str:
    try:
        with Run.open(job.folder, job.name, readonly=True) as run:
            outline = run.outline()
    except (GrpoError, sqlite3.Error):  # border: its trainer is creating the record
        return "starting"
    if outline["reward_mean"] is None:
        return "starting"
    return f"step {outline['steps']}/{job.config.steps}  reward {outline['reward_mean']:.2f}"
