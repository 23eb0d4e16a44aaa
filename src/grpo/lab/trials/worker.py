"""A process that trains one trial. It imports the trainer and warms up first, so that a trial starts at once.

It reads a request as JSON from its input, trains in the request's folder, and writes a line of JSON for every step. It
ends after the trial, and without one when its input is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.trials.perform import perform
from grpo.lab.trials.spec import Trial

PRIORITY = 5
"""Added to the process's niceness: a run that the user trains comes first."""
WARMUP = {
    "arms": [{"label": "warmup", "settings": {"prompts_per_step": 1, "group_size": 2}}],
    "seeds": 1,
    "steps": 1,
    "metrics": ["reward_mean"],
}


def start_worker() -> subprocess.Popen[str]:
    """A worker that waits for a request; `os.killpg` with its id ends it and its children."""
    return subprocess.Popen(
        [sys.executable, "-m", "grpo.lab.trials.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that killing the group ends its children too
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def main() -> None:
    os.nice(PRIORITY)
    # Standard output carries only the messages; anything else that prints goes to standard error.
    out = sys.stdout
    sys.stdout = sys.stderr

    def report(row: dict[str, Any]) -> None:
        try:
            print(json.dumps(row), file=out, flush=True)
        except BrokenPipeError:  # border: the reader has gone
            raise SystemExit from None

    with tempfile.TemporaryDirectory(prefix="grpo-warmup-") as folder:
        perform(Trial.of(WARMUP), Path(folder), report=lambda row: None)
    line = sys.stdin.readline()
    if not line:
        return
    request = json.loads(line)
    try:
        perform(Trial.of(request["trial"], request["rewards"]), Path(request["folder"]), report)
    except GrpoError as problem:
        report({"kind": "failed", "error": str(problem)})


if __name__ == "__main__":
    main()
