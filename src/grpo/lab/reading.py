"""Queries of a run record for the pages. Long runs are reduced to at most `points` points."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grpo.lab.episodes import waits
from grpo.lab.notes import notes_row
from grpo.lab.pace import pace
from grpo.record.metrics import EVAL_METRICS, METRICS, Metric
from grpo.record.ranks import Ranks
from grpo.record.store import Run

SETTINGS = ("model", "task", "algorithm", "seed", "prompts_per_step", "group_size")


def headline(run: Run) -> dict[str, Any]:
    """The row of a run in the list."""
    last = run.last_step()
    [ends] = run.select("SELECT min(recorded) AS first, max(recorded) AS last FROM steps")
    rewards = run.select("SELECT value FROM metrics WHERE step = ? AND name = 'reward_mean'", last)
    accuracies = [row["accuracy"] for row in run.evals() if row["accuracy"] is not None]
    status = run.status
    return {
        "kind": run.kind,
        "status": status,
        "created": run.meta("created"),
        **{name: run.config.get(name) for name in SETTINGS},
        "steps": 0 if last is None else last + 1,
        "steps_total": run.config.get("steps"),
        "recorded": ends["last"],
        "quiet_seconds": round(time.time() - ends["last"]) if status == "running" and ends["last"] else None,
        "reward_mean": rewards[0]["value"] if rewards else None,
        "accuracy": [*accuracies[:1], *accuracies[1:][-1:]],
    }


def overview(run: Run) -> dict[str, Any]:
    spans = run.select("SELECT name, sum(seconds) AS seconds FROM spans GROUP BY name ORDER BY min(start)")
    seconds = {row["name"]: row["seconds"] for row in spans}
    if waited := sum(waits(run, 1).values()):
        seconds |= {"rollout": max(0.0, seconds.get("rollout", 0.0) - waited), "wait": waited}
    return {
        **headline(run),
        "name": run.name,
        "failure": run.failure,
        "config": run.config,
        "versions": run.meta("versions"),
        "command": run.meta("command"),
        "evals": run.evals(),
        "findings": run.select("SELECT count(*) AS count FROM findings")[0]["count"],
        "seconds": seconds,
        "pace": pace(run),
        **notes_row(run.path),
        "metrics": metric_names(run),
        "ranks": ranks(run),
        "telling_step": telling_step(run),
        "traced_steps": traced_steps(run, most=400),
        "probes": run.select("SELECT count(DISTINCT probe_index) AS count FROM probes")[0]["count"],
    }


def ranks(run: Run) -> dict[str, Any] | None:
    """The ranks in words, and their mean idle shares, the idlest first; None where there is one."""
    found = Ranks.of(run)
    if not found:
        return None
    rows = run.select("SELECT name, avg(value) AS idle FROM metrics WHERE name LIKE 'idle/%' GROUP BY name")
    shares = sorted(((row["idle"], int(row["name"].removeprefix("idle/"))) for row in rows), reverse=True)
    idle = [{"rank": rank, "host": found.hosts[rank], "idle": share} for share, rank in shares if rank < found.size]
    return {"text": str(found), "idle": idle}


def metric_names(run: Run) -> list[str]:
    """Recorded metrics in the order of their table, from the first and last 20 steps: a skipped update has fewer. Idle
    shares of ranks are left out."""
    last = run.last_step() or 0
    found = run.select("SELECT DISTINCT name FROM metrics WHERE step < 20 OR step > ?", last - 20)
    names = {row["name"] for row in found if not row["name"].startswith("idle/")}
    return [*(name for name in METRICS if name in names), *sorted(names - METRICS.keys())]


def telling_step(run: Run) -> int:
    """The first step with the most groups with signal."""
    query = "SELECT step FROM metrics WHERE name = 'zero_signal_groups' ORDER BY value, step LIMIT 1"
    return next((row["step"] for row in run.select(query)), 0)


def traced_steps(run: Run, most: int) -> list[int]:
    """Steps with recorded tokens, at most `most`, evenly spaced."""
    steps = [row["step"] for row in run.select("SELECT DISTINCT step FROM token_arrays ORDER BY step")]
    stride = -(-len(steps) // most) if steps else 1
    return steps[::stride]


def definitions() -> dict[str, dict[str, dict[str, str]]]:
    def table(metrics: dict[str, Metric]) -> dict[str, dict[str, str]]:
        return {name: vars(metric) for name, metric in metrics.items()}

    return {"training": table(METRICS), "evaluation": table(EVAL_METRICS)}


def series(run: Run, names: Sequence[str], points: int) -> dict[str, Any]:
    """Each metric over the run: mean and range of every interval of `width` steps."""
    last = run.last_step()
    if last is None:
        return {"width": 1, "series": {}}
    width = max(1, -(-(last + 1) // points))
    # One query per interval follows the order of the rows: twice as fast as one query for all.
    query = f"""
        SELECT name, min(step) AS step, avg(value) AS mean, min(value) AS low, max(value) AS high
        FROM metrics WHERE step >= ? AND step < ? AND name IN ({", ".join("?" for _ in names)}) AND value IS NOT NULL
        GROUP BY name"""
    found: dict[str, dict[str, list[Any]]] = {}
    for begin in range(0, last + 1, width):
        for row in run.select(query, begin, begin + width, *names):
            columns = found.setdefault(row["name"], {"step": [], "mean": [], "low": [], "high": []})
            for column, values in columns.items():
                values.append(row[column])
    return {"width": width, "series": {name: found[name] for name in names if name in found}}


def timeline(run: Run, points: int) -> dict[str, Any]:
    """Seconds by phase, mean over every interval of `width` steps; `wait` is the part of the rollouts that waited for
    observations, `between` the time between steps."""
    last = run.last_step()
    width = max(1, -(-((last or 0) + 1) // points))
    phases = run.select(
        "SELECT step / ? * ? AS step, name, sum(seconds) / count(DISTINCT step) AS seconds, min(start) AS first "
        "FROM spans GROUP BY step / ?, name ORDER BY step, first",
        width, width, width,
    )  # fmt: skip
    # Between two steps are evaluations and checkpoints: from one step's record to the next step's first phase.
    between = run.select(
        "SELECT step / ? * ? AS step, avg(begun - ended) AS seconds FROM ("
        "  SELECT step, min(start) AS begun, lag(max(start + seconds)) OVER (ORDER BY step) AS ended FROM spans"
        "  GROUP BY step) WHERE ended IS NOT NULL GROUP BY step / ? ORDER BY step",
        width, width, width,
    )  # fmt: skip
    rows = [{key: row[key] for key in ("step", "name", "seconds")} for row in phases]
    waited = waits(run, width)
    for row in [row for row in rows if row["name"] == "rollout" and row["step"] in waited]:
        seconds = min(waited[row["step"]], row["seconds"])
        row["seconds"] -= seconds
        rows.append({"step": row["step"], "name": "wait", "seconds": seconds})
    rows += [{"step": row["step"], "name": "between", "seconds": max(0.0, row["seconds"])} for row in between]
    return {"width": width, "rows": rows}


def spans_of(run: Run, step: int) -> list[dict[str, Any]]:
    """One step's phases, in seconds from the start of the first."""
    rows = run.select("SELECT name, start, seconds FROM spans WHERE step = ? ORDER BY start", step)
    return [{**row, "start": row["start"] - rows[0]["start"]} for row in rows]


def probes(run: Run) -> list[dict[str, Any]]:
    """Each pinned problem with its samples at every evaluation."""
    pinned: dict[int, dict[str, Any]] = {}
    for row in run.probes():
        about = {key: row[key] for key in ("problem_id", "prompt", "answer")}
        problem = pinned.setdefault(row["probe_index"], {"index": row["probe_index"], **about, "evaluations": []})
        problem["evaluations"].append({"step": row["step"], "samples": row["samples"]})
    return list(pinned.values())
