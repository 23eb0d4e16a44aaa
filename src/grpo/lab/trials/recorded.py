"""Recorded trials that ship with the package, made by `scripts/record_trials.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.trials.outcome import Outcome
from grpo.lab.trials.spec import Trial

RECORDED = Path(__file__).parents[1] / "recordings/trials"


def recorded(name: str) -> dict[str, Any] | None:
    """The outcome of a recorded trial and the library versions that made it; None if there is no recording."""
    # The name comes from a table, never from a request.
    file = RECORDED / f"{name}.json"
    return _read(file, file.stat().st_mtime_ns) if file.is_file() else None


def recorded_arms(name: str) -> list[dict[str, Any]]:
    """The arms of a recorded trial; an error if there is no recording."""
    kept = recorded(name)
    if kept is None:
        raise GrpoError(f"the trial {name} was not recorded; run python scripts/record_trials.py {name}")
    return list(kept["outcome"]["arms"])


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int) -> dict[str, Any]:
    kept = json.loads(file.read_text())
    rewards = {arm["settings"]["reward"] for arm in kept["trial"]["arms"] if "reward" in arm["settings"]}
    outcome = Outcome.from_json(Trial.of(kept["trial"], tuple(rewards)), kept["runs"])
    return {"outcome": outcome.summary(), "versions": kept["versions"], "seconds": kept["seconds"]}


def write(file: Path, outcome: Outcome, versions: Mapping[str, str | None], seconds: float) -> None:
    kept = {
        "trial": outcome.trial.as_json(),
        "versions": versions,
        "seconds": round(seconds, 1),
        "runs": outcome.as_json(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
