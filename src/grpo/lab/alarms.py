"""Signs of trouble read off a record, each with the place to look at."""

from __future__ import annotations

from typing import Any

from grpo.store import Run


def alarms(run: Run) -> list[dict[str, Any]]:
    return []
