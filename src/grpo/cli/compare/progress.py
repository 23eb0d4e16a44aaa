"""How far a comparison is: a line per run that goes on, and how many are done."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grpo.cli.compare.arms import Job
from grpo.cli.terminal.report import clock
from grpo.errors import GrpoError
from grpo.record.store import Run

SECONDS_BETWEEN_FRAMES = 2.0


class Watch:
    """In a terminal one frame that stays in its place; in a log a line whenever a run is done."""

    def __init__(self, jobs: Sequence[Job], *, quiet: bool) -> None:
        self.total = len(jobs)
        self.began, self.drawn_at = time.monotonic(), 0.0
        self.told: set[str] = set()
        console = Console(stderr=True)  # the result alone goes to stdout
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self.quiet = quiet

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def look(self, running: Sequence[Job], done: Sequence[Job]) -> None:
        if self.quiet:
            return
        if self.live is None:
            for job in done:
                if job.name not in self.told:
                    self.told.add(job.name)
                    print(f"{len(self.told)}/{self.total} {job.name} done", file=sys.stderr, flush=True)
        elif time.monotonic() >= self.drawn_at + SECONDS_BETWEEN_FRAMES:
            self.drawn_at = time.monotonic()
            head = (
                f"{len(done)} of {self.total} runs done, {len(running)} going on, {clock(self.drawn_at - self.began)}"
            )
            lines = [head, *(f"  {job.name:<40} {how_far(job)}" for job in running)]
            self.live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)


def how_far(job: Job) -> str:
    try:
        with Run.open(job.folder, job.name, readonly=True) as run:
            last, rewards = run.last_step(), run.series("reward_mean")
    except (GrpoError, sqlite3.Error):  # border: its trainer is just making the record
        return "starting"
    if last is None or not rewards:
        return "starting"
    return f"step {last + 1}/{job.config.steps}  reward {rewards[-1][1]:.2f}"
