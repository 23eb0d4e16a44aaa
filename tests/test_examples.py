"""The examples that hand over Python objects, run as a person runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(example: str, folder: Path) -> str:
    """What the script prints. Fails where a process of its session is left behind."""
    script = EXAMPLES / example
    assert len(script.read_text().splitlines()) <= 15
    started = subprocess.Popen(
        [sys.executable, str(script)],
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


def test_a_lambda_and_a_list_of_dicts_train_nano(tmp_path: Path) -> None:
    rewards = [float(number) for number in re.findall(r"mean reward (\S+)", output_of("lambda_reward.py", tmp_path))]
    assert len(rewards) == 5
    assert rewards[0] < 0.5
    assert rewards[-1] > 0.8


def test_a_reward_that_hangs_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    assert output_of("hanging_reward.py", tmp_path) == (
        "reward python:lambda: failed on 16 of the last 16 completions, more than scoring.most_failures (0.1) allows; "
        "the last: timeout: no result after 0.3 s; fix it, or raise the limit\n"
    )
