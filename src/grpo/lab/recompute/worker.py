"""The process that recomputes one group: `python -m grpo.lab.recompute.worker FOLDER NAME STEP GROUP`.

It writes a line of JSON for its progress, and a last one with the result or the problem.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.recompute.values import recompute
from grpo.record.store import Run

PRIORITY = 5
"""Added to the process's niceness: a run that the user trains comes first."""


def main(folder: str, name: str, step: str, group: str) -> None:
    os.nice(PRIORITY)
    # Standard output carries only the messages; anything else that prints goes to standard error.
    out, sys.stdout = sys.stdout, sys.stderr

    def report(done: int, total: int) -> None:
        print(json.dumps({"done": done, "total": total}), file=out, flush=True)

    try:
        with Run.open(Path(folder), name, readonly=True) as run:
            result: dict[str, Any] = {"result": recompute(run, int(step), int(group), report)}
    except GrpoError as problem:
        result = {"error": str(problem)}
    print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
