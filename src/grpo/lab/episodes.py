"""Episodes of a run: the turns of a completion, rewards by number of turns, and the time spent waiting for answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.record.store import Run

SHOWN = ("who", "text", "tokens", "calls", "reward", "fault")
MOST_STEPS = 20
"""Steps at either end of a run whose rewards are compared."""


def strip(done: Mapping[str, Any], tokens: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What the model wrote and read, in order; each turn of the model with the mean advantage of its tokens, or with
    the completion's where they were not recorded."""
    advantages = tokens["advantages"] if tokens else None
    rows = []
    for turn in done["turns"]:
        row = {name: turn[name] for name in SHOWN}
        if turn["who"] == "model":
            own = None if advantages is None else advantages[turn["after"] : turn["after"] + turn["tokens"]]
            row["advantage"] = done["advantage"] if own is None or not len(own) else float(own.mean())
        rows.append(row)
    return rows


def by_turns(run: Run) -> dict[str, Any]:
    """Reward and accuracy by the number of turns that the model took, in the first and the last steps of the run."""
    last = run.last_step()
    if last is None:
        return {"early": None, "late": None}
    count = max(1, min(MOST_STEPS, (last + 1) // 2))
    late = _rewards(run, last - count + 1, last) if last else None
    return {"early": _rewards(run, 0, count - 1), "late": late}


def _rewards(run: Run, first: int, last: int) -> dict[str, Any]:
    rows = run.select(
        "SELECT taken AS turns, count(*) AS episodes, avg(reward) AS reward, avg(correct) AS accuracy FROM completions "
        "JOIN (SELECT step, group_index, sample_index, count(*) AS taken FROM turns "
        "      WHERE step BETWEEN ? AND ? AND who = 'model' GROUP BY step, group_index, sample_index) "
        "USING (step, group_index, sample_index) GROUP BY taken ORDER BY taken",
        first,
        last,
    )
    return {"steps": [first, last], "rows": rows}


def waits(run: Run, width: int) -> dict[int, float]:
    """Seconds that a step waited for observations, by the first step of every interval of `width` steps."""
    rows = run.select(
        "SELECT step / ? * ? AS first, avg(value) AS seconds FROM metrics WHERE name = 'observation_wait' "
        "GROUP BY step / ?",
        width, width, width,
    )  # fmt: skip
    return {row["first"]: row["seconds"] for row in rows}
