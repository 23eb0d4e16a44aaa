"""Going on with a run: which one it is, from which checkpoint, and whether it would still be the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.config import Config
from grpo.config.parse import flat
from grpo.config.schema import as_dict
from grpo.errors import GrpoError
from grpo.record.checkpoints import Checkpoint, Checkpoints
from grpo.record.events import Callback
from grpo.record.store import Run

FREE_TO_CHANGE = (
    *("steps", "run", "resume", "checkpoint_every", "evaluation", "checkpoints"),
    *("system.runs", "system.token_groups", "system.quiet", "system.log", "scoring.workers"),
)
"""Settings, and sections, that a resumed run may have otherwise than it began with; all others would make it another
experiment."""


def existing_run(config: Config, folder: Path) -> Run | None:
    """The run to go on with; None when a new one is to be made."""
    if config.resume and not config.run:
        raise GrpoError("field resume: which run? name it with --run NAME")
    if not config.run or not (folder / config.run).exists():
        return None
    if not config.resume:
        raise GrpoError(
            f"field run: {config.run} exists in {folder}; go on with it (--resume) or choose another name (--run OTHER)"
        )
    run = Run.open(folder, config.run)
    if run.kind != "grpo":
        run.close()
        raise GrpoError(
            f"field run: {config.run} is a run of supervised fine-tuning; choose another name (--run OTHER)"
        )
    return run


def checkpoint_to_resume(run: Run, config: Config, prints: Mapping[str, str], callbacks: Callback) -> Checkpoint | None:
    """The checkpoint to resume from; None: from the beginning. Refuses what would make it another run."""

    def report(damage: str) -> None:
        callbacks.on_warning(damage)
        run.add_finding("damaged", damage)

    changes = [
        *_changed(_decisive(run.config), _decisive(as_dict(config))),
        *_changed(run.meta("fingerprints"), prints),
    ]
    if changes and not config.checkpoints.allow_change:
        raise GrpoError(
            f"field resume: {run.name} would not go on as it began: {'; '.join(changes)}; restore that, start another "
            "(--run OTHER), or accept it (--checkpoints.allow-change)"
        )
    for change in changes:
        run.add_finding("changed", change)
    # A power cut may take the record's last steps, but not a checkpoint taken after them: it would leave a gap.
    last_step = run.last_step()
    recorded_steps = 0 if last_step is None else last_step + 1
    checkpoint = Checkpoints(run.path).newest_whole(report, up_to=recorded_steps)
    if checkpoint is None and last_step is not None:
        report(f"{run.name} has no whole checkpoint: it is made again from the beginning")
    if checkpoint and checkpoint.step > config.steps:
        raise GrpoError(f"field steps: {run.name} has taken {checkpoint.step} steps already; ask for more than that")
    return checkpoint


def kept_budget(run: Run | None, config: Config) -> int | None:
    """Tokens per micro-batch as the record has them, which memory may have halved; unless others are asked for now."""
    asked_before = run and run.config["system"].get("token_budget")
    return run.meta("token_budget") if run and asked_before == config.system.token_budget else None


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that make the run what it is, by path."""
    return {
        path: value
        for path, value in flat(settings)
        if path not in FREE_TO_CHANGE and path.partition(".")[0] not in FREE_TO_CHANGE
    }


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*before, *(name for name in now if name not in before)]
    pairs = [(name, before.get(name), now.get(name)) for name in names]
    return [f"{name} was {was!r}, is {is_!r}" for name, was, is_ in pairs if was != is_]
