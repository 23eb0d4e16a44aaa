"""The pace of a run: time spent and left, steps per minute, tokens per second, memory."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from grpo.record.store import Run

RECENT = 20
"""Steps that give the pace of a running run; evaluations and checkpoints between them count."""
BREAK_SECONDS = 600
BREAK_STEPS = 10
"""A gap between two steps longer than both is a break, such as the time before a resume."""


def pace(run: Run, now: float | None = None) -> dict[str, Any]:
    now = time.time() if now is None else now
    running = run.status == "running"
    [steps] = run.select("SELECT count(*) AS count, min(recorded) AS first, max(recorded) AS last FROM steps")
    gaps = _gaps(run)
    recent = gaps[-RECENT:] if running else gaps
    per_step = sum(recent) / len(recent) if recent else None
    waited = now - steps["last"] if running and steps["count"] else 0.0
    left = None
    if running and per_step is not None and (total := run.config.get("steps")):
        left = max(0.0, (total - steps["count"]) * per_step - waited)
    return {
        "elapsed": _before_first(run, steps["first"]) + sum(gaps) + waited if steps["count"] else None,
        "left": left,
        "steps_per_minute": 60 / per_step if per_step else None,
        "tokens_per_second": _speed(run, RECENT if running else steps["count"]),
        "memory": _memory(run),
    }


def _gaps(run: Run) -> list[float]:
    """Seconds between the ends of successive steps, without breaks."""
    rows = run.select("SELECT recorded - lag(recorded) OVER (ORDER BY step) AS gap FROM steps ORDER BY step")
    gaps = [row["gap"] for row in rows[1:]]
    longest = max(BREAK_SECONDS, BREAK_STEPS * sorted(gaps)[len(gaps) // 2]) if gaps else 0
    return [gap for gap in gaps if gap <= longest]


def _before_first(run: Run, first: float) -> float:
    """Seconds from the run's creation to its first recorded step: loading, the first evaluation, the step itself."""
    created = run.meta("created")
    return max(0.0, first - datetime.fromisoformat(created).timestamp()) if created else 0.0


def _speed(run: Run, steps: int) -> float | None:
    """Mean of the recorded speeds of the last steps."""
    rows = run.select(
        "SELECT avg(value) AS mean FROM metrics WHERE name = 'tokens_per_second' AND step > ?",
        (run.last_step() or 0) - steps,
    )
    return rows[0]["mean"]


def _memory(run: Run) -> dict[str, Any]:
    """Highest recorded memory and the planned one, in bytes, and the device."""
    planned = run.meta("memory") or {}
    rows = run.select("SELECT max(value) AS peak FROM metrics WHERE name = 'peak_memory'")
    return {"peak": rows[0]["peak"], "planned": planned.get("predicted"), "device": planned.get("device")}
