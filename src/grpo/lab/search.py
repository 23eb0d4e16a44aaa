"""Search of a run's completions by text, reward, advantage and finish reason, one page per request."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from grpo.record.store import Run

PAGE = 60
STEPS_AT_ONCE = 50
CHARACTERS = 200
"""Shown of each turn of an episode."""
TURNS = (
    "FROM turns WHERE (turns.step, turns.group_index, turns.sample_index) = "
    "(completions.step, completions.group_index, completions.sample_index)"
)
SECONDS = 1.0
"""Time limit of one request; the next request continues."""

FILTERS = {
    "right": "correct",
    "wrong": "NOT correct",
    "unscored": "reward IS NULL",
    "cut": "finish != 'stop'",
    "above": "advantage > 0",
    "below": "advantage < 0",
    "level": "advantage = 0",
}


@dataclass(frozen=True)
class Query:
    text: str = ""
    filters: tuple[str, ...] = ()
    newest_first: bool = True
    begin: int | None = None
    """The step at which to continue, in the order of the search."""


def search(run: Run, query: Query) -> dict[str, Any]:
    """Searches whole steps until a page is full; `next` is the first step of the next page, None at the end."""
    last = run.last_step()
    if last is None:
        return {"rows": [], "next": None, "searched": [None, None]}
    conditions = ["step BETWEEN ? AND ?", *(FILTERS[name] for name in query.filters if name in FILTERS)]
    if query.text:
        conditions.append(
            "(instr(lower(text), lower(?)) OR instr(lower(prompt), lower(?)) OR "
            f"EXISTS (SELECT 1 {TURNS} AND instr(lower(turns.text), lower(?))))"
        )
    order = "DESC" if query.newest_first else "ASC"
    statement = (
        "SELECT step, group_index, sample_index, prompt, answer, text, length, finish, reward, correct, advantage, "
        f"(SELECT json_group_array(json_array(who, substr(said, 1, {CHARACTERS}))) FROM "
        f"(SELECT who, turns.text AS said {TURNS} ORDER BY turn)) AS turns "
        f"FROM completions JOIN groups USING (step, group_index) WHERE {' AND '.join(conditions)} "
        f"ORDER BY step {order}, group_index, sample_index"
    )
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    at = (last if query.newest_first else 0) if query.begin is None else query.begin
    first = at
    # One step at a time while there are hits, more steps where there are none.
    width = 1
    while 0 <= at <= last and len(rows) < PAGE and time.monotonic() - begun < SECONDS:
        low, high = (max(0, at - width + 1), at) if query.newest_first else (at, min(last, at + width - 1))
        found = run.select(statement, low, high, *([query.text] * 3 if query.text else []))
        rows += found
        at = low - 1 if query.newest_first else high + 1
        width = width if found else min(2 * width, STEPS_AT_ONCE)
    shown = [
        {
            **row,
            "text": row["text"][:600],
            "prompt": row["prompt"][:300],
            "right": bool(row["correct"]),
            "turns": [{"who": who, "text": text} for who, text in json.loads(row["turns"])],
        }
        for row in rows
    ]
    return {"rows": shown, "next": at if 0 <= at <= last else None, "searched": [first, at]}
