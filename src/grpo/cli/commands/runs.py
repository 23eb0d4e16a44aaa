"""`grpo runs`: lists runs, or reports on one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from grpo.cli.commands.options import parse

PROG = "grpo runs"


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List the runs, or report on one."""

    name: str = ""
    """The run; also the first argument. Empty: list all."""
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""


def command(arguments: list[str]) -> int:
    options = parse(RunsOptions, arguments, PROG, ("name",))
    from grpo.cli.terminal.report import print_run, print_runs
    from grpo.record.store import Run, list_runs

    if options.name:
        with Run.open(Path(options.runs), options.name, readonly=True) as run:
            if options.json:
                print(json.dumps(run.summary()))
            else:
                print_run(run)
        return 0
    rows = list_runs(Path(options.runs))
    if options.json:
        print(json.dumps(rows))
    else:
        print_runs(rows, options.runs)
    return 0
