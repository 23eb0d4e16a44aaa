"""Live view of a run: polls the record and sends each change as a server-sent event."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpo.errors import GrpoError
from grpo.record.store import Run

SECONDS_BETWEEN_POLLS = 0.5
POLLS_BETWEEN_KEEPALIVES = 20


def head(run: Run) -> dict[str, Any]:
    """The state of the run; equal heads mean that nothing was recorded in between."""
    [counts] = run.select(
        "SELECT (SELECT max(step) FROM steps) AS last_step, (SELECT count(*) FROM evals) AS evals, "
        "(SELECT count(*) FROM findings) AS findings"
    )
    return {"status": run.status, "steps_total": run.config.get("steps"), **counts}


async def events(open_run: Callable[[], Run], gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """Yields the head now and after every change, until the run ends or the client disconnects."""

    def poll() -> dict[str, Any]:
        with open_run() as run:
            return head(run)

    sent, polls = None, 0
    while not await gone():
        try:
            now = await asyncio.to_thread(poll)
        except (GrpoError, sqlite3.Error):  # border: a run may be moved, deleted or damaged meanwhile
            return
        if now != sent:
            sent = now
            yield f"data: {json.dumps(now)}\n\n"
            if now["status"] != "running":
                return
        elif polls % POLLS_BETWEEN_KEEPALIVES == 0:
            yield ": keep-alive\n\n"
        polls += 1
        await asyncio.sleep(SECONDS_BETWEEN_POLLS)
