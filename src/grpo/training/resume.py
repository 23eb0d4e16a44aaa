"""Resuming a run: which one, from which checkpoint, and whether its inputs are still the same (fingerprint.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo.config import Config, SftConfig
from grpo.config.parse import flat
from grpo.config.schema import as_dict
from grpo.distributed.worker import run_to_resume
from grpo.distributed.world import World
from grpo.errors import GrpoError
from grpo.model.device import pick_device
from grpo.record.checkpoints import Checkpoint, Checkpoints
from grpo.record.events import Callback
from grpo.record.store import Run
from grpo.training.fingerprint import Fingerprints, is_own_code

NAMED_CHANGES = 4
"""Most changed files that a message names."""
FREE_TO_CHANGE = (
    *("steps", "epochs", "run", "resume", "checkpoint_every", "checkpoints"),
    *("evaluation.every", "evaluation.problems", "evaluation.probes"),
    *("system.runs", "system.token_groups", "system.quiet", "system.log", "scoring.workers", "scale"),
)
"""Settings and sections that a resumed run may change. `epochs` is that of supervised fine-tuning: it sets `steps`."""
FREE_TO_DIFFER = (
    *("model", "data", "dataset.heldout"),  # paths; their contents are compared
    *("run", "resume", "scoring.workers", "scale"),
    *("system.device", "system.runs", "system.quiet", "system.log"),
)
"""Settings and sections that may differ between the hosts of a run."""
NAMES_OF_ROWS = ("data", "dataset.heldout")
"""Settings that may also change where the rows have the same fingerprint: a file may be moved, or named otherwise."""
COMMANDS = {"grpo": "grpo train", "sft": "grpo sft"}
"""By kind of run."""


def existing_run(config: Config | SftConfig, kind: str) -> Run | None:
    """The run to resume; None where a new run must be created."""
    folder = Path(config.system.runs)
    if begun := run_to_resume():
        config = replace(config, run=begun, resume=True)
    if config.resume and not config.run:
        raise GrpoError("field resume: no run is named; name it with --run NAME")
    if not config.run or not (folder / config.run).exists():
        return None
    if not config.resume:
        raise GrpoError(
            f"field run: {config.run} exists in {folder}; resume it (--resume) or choose another name (--run OTHER)"
        )
    run = Run.open(folder, config.run)
    if run.kind != kind:
        run.close()
        raise GrpoError(
            f"field run: {config.run} is a run of {COMMANDS[run.kind]}, not of {COMMANDS[kind]}; choose another name "
            "(--run OTHER)"
        )
    return run


def checkpoint_to_resume(
    run: Run, config: Config | SftConfig, fingerprints: Fingerprints, callbacks: Callback
) -> Checkpoint | None:
    """The checkpoint to resume from; None: start again from the first step. Refuses changed settings and inputs."""

    def report(damage: str) -> None:
        callbacks.on_warning(damage)
        run.add_finding("damaged", damage)

    recorded = run.meta("fingerprints") or {}
    same_rows = "data" in recorded and recorded["data"] == fingerprints.get("data")
    free = FREE_TO_CHANGE + NAMES_OF_ROWS if same_rows else FREE_TO_CHANGE
    last_step, checkpoints = run.last_step(), Checkpoints(run.path)
    # Code of the user that kept the run from its first step may be fixed: nothing was trained with it.
    untrained = last_step is None and checkpoints.newest() is None
    was, now = (
        {k: v for k, v in each.items() if not (untrained and is_own_code(k))} for each in (recorded, fingerprints)
    )
    changes = [
        *_changed(_fixed_settings(run.config, free), _fixed_settings(as_dict(config), free)),
        *_changed(was, now),
    ]
    if changes and not config.checkpoints.allow_change:
        raise GrpoError(
            f"field resume: {run.name} began with other inputs: {'; '.join(changes)}; restore them, start another run "
            "(--run OTHER), or accept the change (--checkpoints.allow-change)"
        )
    for change in changes:
        run.add_finding("changed", change)
    if untrained:
        run.set_meta("fingerprints", fingerprints)
    # After a power cut the record may lack steps that an fsynced checkpoint has; using it would leave a gap.
    recorded_steps = 0 if last_step is None else last_step + 1
    checkpoint = checkpoints.newest_whole(report, up_to=recorded_steps)
    if checkpoint is None and last_step is not None:
        report(f"{run.name} has no complete checkpoint: it starts again from the first step")
    if checkpoint and checkpoint.step > config.steps:
        raise GrpoError(f"field steps: {run.name} has already taken {checkpoint.step} steps; raise --steps")
    return checkpoint


def recorded_ranks(run: Run) -> int:
    """Number of ranks with which the run was last started."""
    world = run.meta("world")
    return int(world["size"]) if world else 1  # earlier versions had one


@dataclass(frozen=True)
class Kept:
    """What a resumed run keeps of how it began, because it changes the last bits."""

    threads: int
    token_budgets: Sequence[int]
    """Tokens per micro-batch of each rank, which an out-of-memory error may have halved."""
    rows: Sequence[int]
    """Most completions that each rank decodes at once."""
    cache_blocks: Sequence[int]
    """Blocks of each rank's KV cache, which decide with the lengths which completions are decoded together."""

    @classmethod
    def of(cls, run: Run | None, config: Config | SftConfig, ranks: int) -> Kept:
        """Of a run to resume; 0 where nothing was recorded, or the setting or the number of ranks has changed. Rows and
        blocks are those of a kind of device, CPU or GPU."""
        if run is None:
            return cls(0, *([0] * ranks for _ in range(3)))
        before, system = run.config["system"], config.system
        # Runs recorded by earlier versions have one number, for their only rank, and the rows under other names.
        budgets = run.meta("token_budgets") or run.meta("token_budget")
        rows, blocks = run.meta("max_concurrent") or run.meta("rows_at_once"), run.meta("cache_blocks")
        if before.get("token_budget") != system.token_budget:
            budgets = None
        now = pick_device(system)
        device = (run.meta("memory") or {}).get("device", now)
        same_limit = before.get("max_concurrent_completions") == system.max_concurrent_completions
        if not same_limit or _kind(device) != _kind(now):
            rows = blocks = None
        return cls(run.meta("threads") or 0, *(_by_rank(numbers, ranks) for numbers in (budgets, rows, blocks)))


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _by_rank(kept: int | list[int] | None, ranks: int) -> list[int]:
    numbers = kept if isinstance(kept, list) else [kept or 0]
    return numbers if len(numbers) == ranks else [0] * ranks


def check_same_inputs(world: World, config: Config | SftConfig, fingerprints: Fingerprints) -> None:
    """Refuse to train where a rank has other settings, another model, other data, code or versions than rank 0."""
    every = world.meet({**_fixed_settings(as_dict(config), FREE_TO_DIFFER), **fingerprints})
    for rank, found in enumerate(every):
        if changes := _changed(every[0], found, "{name} is {now!r}, not {was!r}"):
            raise GrpoError(
                f"{world.name(rank)} differs from {world.name(0)}: {'; '.join(changes)}; use the same on every host"
            )


def _fixed_settings(settings: Mapping[str, Any], free: Sequence[str]) -> dict[str, Any]:
    """The settings that must stay the same, by path: all but the `free` ones and sections."""
    return {path: value for path, value in flat(settings) if path not in free and path.partition(".")[0] not in free}


def _changed(
    before: Mapping[str, Any], now: Mapping[str, Any], form: str = "{name} was {was!r}, is {now!r}"
) -> list[str]:
    """One line for each entry that differs, in this form. Of a mapping, the names whose values differ.

    >>> _changed({"lr": 0.1, "model": {"a": "1", "b": "2"}}, {"lr": 0.2, "model": {"b": "3", "c": "4"}})
    ['lr was 0.1, is 0.2', 'model: a removed, b changed, c added']
    """
    names = [*before, *(name for name in now if name not in before)]
    pairs = [(name, before.get(name), now.get(name)) for name in names]
    return [_difference(name, was, is_, form) for name, was, is_ in pairs if was != is_]


def _difference(name: str, was: Any, is_: Any, form: str) -> str:
    if not isinstance(was or is_, Mapping) or not isinstance(is_ or was, Mapping):
        return form.format(name=name, was=was, now=is_)
    was, is_ = was or {}, is_ or {}
    changes = [
        f"{part} {'added' if part not in was else 'removed' if part not in is_ else 'changed'}"
        for part in sorted({*was, *is_})
        if was.get(part) != is_.get(part)
    ]
    more = len(changes) - NAMED_CHANGES
    return f"{name}: {', '.join(changes[:NAMED_CHANGES])}{f' and {more} more' if more > 0 else ''}"
