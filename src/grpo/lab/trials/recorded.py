"""Trials that ship with the package, so that a page has something to show at once: `scripts/record_trials.py`."""

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
    """The outcome of a shipped trial with the versions it was made by; None where there is none."""
    # The name is one of a table, never a path.
    file = RECORDED / f"{name}.json"
    return _read(file, file.stat().st_mtime_ns) if file.is_file() else None


def recorded_arms(name: str) -> list[dict[str, Any]]:
    """Of a trial that ships; refused where it is not there."""
    kept = recorded(name)
    if kept is None:
        raise GrpoError(f"the trial {name} was not recorded: python scripts/record_trials.py {name}")
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
