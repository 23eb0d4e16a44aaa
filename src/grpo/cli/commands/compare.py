"""`grpo compare`: algorithms or recipes over several seeds; a table, a plot, and significant differences."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.cli.compare.intervals import Interval
from grpo.cli.compare.jobs import Job, default_name, make_jobs
from grpo.cli.compare.plot import check_matplotlib, draw
from grpo.cli.compare.progress import ProgressView
from grpo.cli.compare.results import RunResult, conclusions, differences, measure_of, read, summarise
from grpo.cli.compare.runner import jobs_at_once, run_all
from grpo.config import parse as flags
from grpo.errors import GrpoError

PROG = "grpo compare"


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Train algorithms or recipes with several seeds each, and report which differences are significant.

    grpo compare --algorithms grpo,dr_grpo --seeds 3 [recipe.toml] [any setting of grpo train], or
    grpo compare one.toml other.toml --seeds 3. The same command resumes where it stopped.
    """

    algorithms: str = ""
    """Presets to compare, separated by commas; empty: compare the recipes."""
    seeds: int = 3
    """Runs of each, with seeds 1, 2, 3, …"""
    jobs: int = 0
    """Runs at a time; 0: as many as cores and memory allow."""
    name: str = ""
    """Prefix of the runs' names; empty: a hash of the arguments."""
    picture: str = ""
    """PNG file to write; empty: NAME.png; none: no plot."""
    json: bool = False
    """Print JSON."""


def command(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        flags.show_help(CompareOptions, PROG)
    own, train_arguments = split(arguments)
    options = flags.build(CompareOptions, flags.read(CompareOptions, own, prog=PROG), prog=PROG)
    if options.seeds < 1:
        raise GrpoError(f"field seeds (command line): must be at least 1; got {options.seeds}")
    if options.jobs < 0:
        raise GrpoError(f"field jobs (command line): must be at least 0; got {options.jobs}")
    algorithms = [name.strip() for name in options.algorithms.split(",") if name.strip()]
    name = default_name(options.name, train_arguments)
    jobs = make_jobs(algorithms, options.seeds, name, train_arguments)
    if options.picture != "none":
        check_matplotlib()
    with ProgressView(jobs, quiet=options.json) as progress:
        run_all(jobs, options.jobs or jobs_at_once(jobs), progress.update)
    arms: dict[str, list[RunResult]] = {}
    for job in sorted(jobs, key=lambda job: job.seed):
        arms.setdefault(job.arm, []).append(read(job))
    arms = {arm: arms[arm] for arm in dict.fromkeys(job.arm for job in jobs)}
    picture = None
    if options.picture != "none":
        picture = Path(options.picture or f"{name}.png")
        config = jobs[0].config
        draw(arms, picture, f"{config.model}, {config.steps} steps")
    if options.json:
        print(json.dumps(as_json(arms, jobs, picture)))
    else:
        show(arms, picture)
    return 0


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(arguments of the comparison, arguments of each `grpo train`)."""
    known = flags.leaves(CompareOptions)
    own: list[str] = []
    train_arguments: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        setting = name.replace("-", "_")
        if not word.startswith("--") or setting not in known:
            train_arguments.append(word)
            continue
        own.append(word)
        if not equals and known[setting].kind is not bool and rest:
            own.append(rest.pop(0))
    return own, train_arguments


def as_json(arms: dict[str, list[RunResult]], jobs: Sequence[Job], picture: Path | None) -> dict[str, Any]:
    def interval(found: Interval) -> dict[str, float | None]:
        ends = {"low": found.low, "high": found.high}
        return {"mean": found.mean} | {name: end if math.isfinite(end) else None for name, end in ends.items()}

    measured = summarise(arms)
    names = {"held_out": "accuracy" if measure_of(arms) == "accuracy" else "held_out_reward"}
    rows = {
        arm: {
            **{names.get(name, name): interval(found) for name, found in measured[arm].items()},
            f"{names['held_out']}_by_seed": {run.seed: run.held_out for run in runs},
            "runs": [job.name for job in jobs if job.arm == arm],
        }
        for arm, runs in arms.items()
    }
    pairs = [
        {"better": each.better, "worse": each.worse, "beyond_luck": each.is_clear, **interval(each.interval)}
        for each in differences(arms)
    ]
    return {"arms": rows, "pairs": pairs, "words": conclusions(arms), "picture": str(picture) if picture else None}


def show(arms: dict[str, list[RunResult]], picture: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    judged = measure_of(arms) == "accuracy"
    held_out = "held-out accuracy" if judged else "held-out reward"
    for heading in (held_out, "reward at the end", "tokens", "seconds", "GiB at peak", "10¹² operations"):
        table.add_column(heading, justify="right")
    for arm, found in summarise(arms).items():
        table.add_row(
            arm,
            _with_interval(found["held_out"], "{:.1%}" if judged else "{:.3f}"),
            _with_interval(found["reward"], "{:.3f}"),
            f"{found['tokens'].mean:,.0f}",
            f"{found['seconds'].mean:.0f}",
            f"{found['memory'].mean / 2**30:.2f}",
            f"{found['operations'].mean / 1e12:.3g}" if found["operations"].mean else "–",
        )
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    seeds = min(len(runs) for runs in arms.values())
    if seeds > 1:
        console.print(f"Means over {seeds} seeds, with their 95% intervals.", soft_wrap=True)
    console.print("\n".join(conclusions(arms)), highlight=False, soft_wrap=True)
    if picture:
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)


def _with_interval(found: Interval, form: str) -> str:
    """
    >>> _with_interval(Interval(0.5, 0.4, 0.6), "{:.1%}")
    '50.0% [40.0% – 60.0%]'
    """
    mean, low, high = (form.format(value) for value in (found.mean, found.low, found.high))
    return f"{mean} [{low} – {high}]" if math.isfinite(found.high) else mean
