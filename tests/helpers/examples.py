"""Runs a script of examples/ as a person runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(example: str, folder: Path, *arguments: str) -> str:
    """What the script prints. Fails where a process of its session is left behind. `example` may be any path."""
    started = subprocess.Popen(
        [sys.executable, str(EXAMPLES / example), *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GRPO_EXAMPLE": example},
    )
    try:
        printed, _ = started.communicate(timeout=240)
    finally:
        left = [pid for pid in processes_with(f"GRPO_EXAMPLE={example}") if pid != started.pid]
        for pid in (*left, *([started.pid] if started.poll() is None else [])):
            os.kill(pid, signal.SIGKILL)
    assert started.returncode == 0
    assert not left, "processes are left behind"
    return printed


def processes_with(variable: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found
