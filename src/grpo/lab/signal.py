"""Signal of a run: groups by kind, and problems by difficulty."""

from __future__ import annotations

from typing import Any

from grpo.core import zero_signal_chance
from grpo.lab.groups import KINDS, kind_of
from grpo.record.store import Run

MOST_HELDOUT = 400
"""Largest number of held-out problems shown."""


def signal_budget(run: Run, points: int) -> dict[str, Any]:
    """Groups by kind and tokens with gradient of each step; of a long run, of every `stride`-th step."""
    stride, steps = _spread(run, points)
    rows = [_budget(run, step) for step in steps]
    totals = {name: sum(row[name] for row in rows) for name in ("tokens", "gradient_tokens", "groups", *KINDS)}
    return {"stride": stride, "rows": rows, "totals": totals}


def _budget(run: Run, step: int) -> dict[str, Any]:
    kinds = dict.fromkeys(KINDS, 0)
    masked = run.config.get("loss", {}).get("mask_truncated", False)
    completions = run.select(
        "SELECT group_index, reward, correct, finish, length, advantage FROM completions "
        "WHERE step = ? ORDER BY group_index",
        step,
    )
    by_group: dict[int, list[dict[str, Any]]] = {}
    for row in completions:
        by_group.setdefault(row["group_index"], []).append(row)
    for rows in by_group.values():
        kinds[kind_of(*([row[name] for row in rows] for name in ("reward", "finish", "correct")))] += 1
    return {
        "step": step,
        "groups": len(by_group),
        **kinds,
        "completions": len(completions),
        "truncated": sum(row["finish"] != "stop" for row in completions),
        "tokens": sum(row["length"] for row in completions),
        "gradient_tokens": sum(
            row["length"] for row in completions if row["advantage"] and not (masked and row["finish"] != "stop")
        ),
    }


def difficulty(run: Run, points: int) -> dict[str, Any]:
    """Number of right completions per group over the run, and each held-out problem at each evaluation."""
    stride, steps = _spread(run, points)
    size = int(run.config.get("group_size") or 0)
    columns = []
    without_signal = dict(run.series("zero_signal_groups"))
    for step in steps:
        right_of_each = run.select(
            "SELECT sum(coalesce(correct, reward >= 1, 0)) AS right, count(*) AS count FROM completions WHERE step = ? "
            "GROUP BY group_index",
            step,
        )
        counts = [0] * (size + 1)
        for row in right_of_each:
            counts[min(size, row["right"] * size // max(1, row["count"]))] += 1
        pass_rate = sum(row["right"] for row in right_of_each) / max(1, sum(row["count"] for row in right_of_each))
        columns.append(
            {
                "step": step,
                "groups_by_right": counts,
                "pass_rate": pass_rate,
                "observed_zero_signal": without_signal.get(step),
                "expected_zero_signal": zero_signal_chance(pass_rate, size) if size else None,
            }
        )
    return {"stride": stride, "group_size": size, "columns": columns, "heldout": _heldout(run)}


def _heldout(run: Run) -> dict[str, Any]:
    """Held-out problems by evaluation, the hardest last: 1 if correct, else 0."""
    steps = [row["step"] for row in run.select("SELECT step FROM evals ORDER BY step")]
    problems: dict[int, dict[str, Any]] = {}
    rows = run.select(
        "SELECT step, group_index, problem_id, prompt, coalesce(correct, reward >= 1, 0) AS right FROM eval_groups "
        "JOIN eval_completions USING (step, group_index) WHERE sample_index = 0 AND group_index < ? "
        "ORDER BY step, group_index",
        MOST_HELDOUT,
    )
    for row in rows:
        about = {"id": row["problem_id"], "prompt": row["prompt"][:120], "right": [None] * len(steps)}
        problem = problems.setdefault(row["group_index"], about)
        problem["right"][steps.index(row["step"])] = row["right"]
    ranked = sorted(problems.values(), key=lambda problem: -sum(filter(None, problem["right"])))
    return {"steps": steps, "problems": ranked}


def _spread(run: Run, points: int) -> tuple[int, list[int]]:
    last = run.last_step()
    if last is None:
        return 1, []
    stride = max(1, -(-(last + 1) // points))
    steps = run.select("SELECT step FROM steps WHERE step % ? = 0 ORDER BY step", stride)
    return stride, [row["step"] for row in steps]
