"""A run that goes on: the record is watched, and each change is told as a server-sent event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpo.errors import GrpoError
from grpo.record.store import Run

SECONDS_BETWEEN_LOOKS = 0.5
LOOKS_BETWEEN_SIGNS_OF_LIFE = 20


def head(run: Run) -> dict[str, Any]:
    """Where the run stands; equal heads mean that nothing was recorded in between."""
    [counts] = run.select(
        "SELECT (SELECT max(step) FROM steps) AS last_step, (SELECT count(*) FROM evals) AS evals, "
        "(SELECT count(*) FROM findings) AS findings"
    )
    return {"status": run.status, "steps_asked": run.config.get("steps"), **counts}


async def events(open_run: Callable[[], Run], gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """The head now, and again whenever it has changed, until the run ends or the reader leaves."""

    def look() -> dict[str, Any]:
        with open_run() as run:
            return head(run)

    told, looks = None, 0
    while not await gone():
        try:
            now = await asyncio.to_thread(look)
        except GrpoError:  # border: somebody may move or delete the run while it is watched
            return
        if now != told:
            told = now
            yield f"data: {json.dumps(now)}\n\n"
            if now["status"] != "running":
                return
        elif looks % LOOKS_BETWEEN_SIGNS_OF_LIFE == 0:
            yield ": still here\n\n"
        looks += 1
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
