"""Launchers of a test: processes that start ranks of a small script, each as on a host of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import Scale
from helpers import forks

SECONDS = 60.0


@dataclass
class Launch:
    """A running `grpo`, as a terminal would have it: what it printed, its exit code, signals."""

    process: Any
    folder: Path
    name: str

    @property
    def stdout(self) -> str:
        return (self.folder / f"{self.name}.out").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / f"{self.name}.err").read_text()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def code(self) -> int:
        self.process.join(SECONDS)
        assert not self.process.is_alive(), self.stderr
        return int(self.process.exitcode)


def start(folder: Path, script: Path, *arguments: str, name: str = "host", tty: str = "", **scale: Any) -> Launch:
    """Start the launcher of `python SCRIPT ARGUMENTS`, which run in `folder`. `tty`: a terminal to print to."""
    command, outputs = [str(script), *arguments], [tty or f"{name}.out", tty or f"{name}.err"]
    forks.ensure_running()
    process = forks.context.Process(target=_run, args=(folder, outputs, Scale(**scale), command), daemon=False)
    process.start()
    return Launch(process, folder, name)


def eventually(happened: Callable[[], bool]) -> None:
    """Waits for what another process does."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def _run(folder: Path, outputs: list[str], scale: Scale, command: list[str]) -> None:
    """As `grpo.cli.main.main` does."""
    from grpo.distributed.launch import launch
    from grpo.errors import GrpoError, LostRankError

    os.chdir(folder)
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    try:
        code = launch(scale, command)
    except GrpoError as error:
        print(f"grpo: {error}", file=sys.stderr, flush=True)
        code = 1 if isinstance(error, LostRankError) else 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
