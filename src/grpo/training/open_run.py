"""A run that this process trains: its record, its lock, and the checkpoint to resume from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import Config, SftConfig
from grpo.config.schema import as_dict
from grpo.distributed.worker import remember_run
from grpo.errors import GrpoError
from grpo.record.checkpoints import Checkpoint
from grpo.record.events import Callback
from grpo.record.lock import RunLock
from grpo.record.store import Run, fresh_name
from grpo.training.fingerprint import Fingerprints
from grpo.training.resume import checkpoint_to_resume, existing_run, recorded_ranks


@dataclass(frozen=True, eq=False)
class OpenRun:
    run: Run
    lock: RunLock
    checkpoint: Checkpoint | None = None
    """None: training starts with the first step."""
    ranks: int = 0
    """Number of ranks that the run had before this resume; 0: the run is new."""


def reopen_run(
    config: Config | SftConfig, kind: str, fingerprints: Fingerprints, callbacks: Callback, undo: ExitStack
) -> OpenRun | None:
    """Lock the existing run that `config` names and check that it can resume; None where there is no such run."""
    run = existing_run(config, kind)
    if run is None:
        return None
    undo.callback(run.close)
    lock = RunLock(run.path)
    undo.callback(lock.close)
    return OpenRun(run, lock, checkpoint_to_resume(run, config, fingerprints, callbacks), recorded_ranks(run))


def create_run(config: Config | SftConfig, kind: str, stem: str, meta: Mapping[str, Any], undo: ExitStack) -> OpenRun:
    """Create the run and lock it. `undo` closes it with status "failed"; an unnamed run is called `stem`-001, -002 …"""
    folder = Path(config.system.runs)
    name = config.run or fresh_name(folder, stem)
    remember_run(name)
    run = Run.create(folder, name, kind=kind, config=as_dict(config), meta=meta)
    undo.callback(run.close)
    undo.callback(_record_failure, run)
    lock = RunLock(run.path)
    undo.callback(lock.close)
    return OpenRun(run, lock)


def _record_failure(run: Run) -> None:
    with suppress(GrpoError):  # the error that ended the start is the one to raise
        run.set_status("failed")
