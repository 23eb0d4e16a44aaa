"""Runs the jobs, several at a time. Each is `grpo train --resume`, so finished work is kept."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

from grpo.cli.compare.jobs import Job
from grpo.config.schema import as_dict, resolve
from grpo.distributed.host import usable_cores
from grpo.errors import GrpoError
from grpo.model.plan import PRECISIONS, Work, find_shape, memory_of, needs
from grpo.record.lock import RunLock
from grpo.record.store import Run

SECONDS_BETWEEN_POLLS = 0.5
PROGRAM = 600_000_000
"""Bytes of a training process without a model: Python, torch, transformers."""
PROMPT_TOKENS = 256
"""Assumed prompt length in the memory prediction."""


@dataclass
class Running:
    job: Job
    process: subprocess.Popen[bytes] | None
    """None: another process, perhaps of a killed comparison, trains this run; we wait for it."""
    errors: IO[bytes]


def run_all(jobs: Sequence[Job], at_once: int, report: Callable[[Sequence[Job], Sequence[Job]], None]) -> None:
    """Calls `report(running, done)` after each poll. The first failure stops all runs, each with a checkpoint."""
    done = [job for job in jobs if is_finished(job)]
    waiting = [job for job in jobs if job not in done]
    running: list[Running] = []
    with ExitStack() as undo:
        undo.callback(_stop, running)
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), undo.enter_context(tempfile.TemporaryFile())))
            time.sleep(SECONDS_BETWEEN_POLLS)
            for entry in [entry for entry in running if _ended(entry)]:
                running.remove(entry)
                if entry.process is None:
                    waiting.insert(0, entry.job)  # it may not be finished
                else:
                    _check(entry)
                    done.append(entry.job)
            report([entry.job for entry in running], done)


def _stop(running: Sequence[Running]) -> None:
    """Each run stops with a checkpoint, after its step."""
    processes = [entry.process for entry in running if entry.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def is_finished(job: Job) -> bool:
    """Whether the run exists, has finished, and has this config, on any number of GPUs."""
    if not (job.folder / job.name / "run.db").is_file():
        return False
    with Run.open(job.folder, job.name, readonly=True) as run:
        return run.status == "finished" and _fixed(run.config) == _fixed(as_dict(resolve(job.config)))


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that change results: the number of ranks does not."""
    return {name: value for name, value in config.items() if name != "scale"}


def _start(job: Job, errors: IO[bytes]) -> Running:
    if _is_taken(job):
        return Running(job, None, errors)
    process = subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    return Running(job, process, errors)


def _is_taken(job: Job) -> bool:
    path = job.folder / job.name
    if not path.is_dir():
        return False
    try:
        RunLock(path).close()
    except GrpoError:
        return True
    return False


def _ended(entry: Running) -> bool:
    return not _is_taken(entry.job) if entry.process is None else entry.process.poll() is not None


def _check(entry: Running) -> None:
    assert entry.process is not None
    if entry.process.returncode == 0:
        return
    if entry.process.returncode in (130, -2, -15):
        raise KeyboardInterrupt
    entry.errors.seek(0)
    lines = entry.errors.read().decode(errors="replace").strip().splitlines()
    reason = lines[-1].removeprefix("grpo: ") if lines else f"exit code {entry.process.returncode}"
    raise GrpoError(f"run {entry.job.name}: {reason}; fix it and run the same command again: finished runs are kept")


def jobs_at_once(jobs: Sequence[Job]) -> int:
    """One per core for models that train on one thread, or as many as have cores for their ranks; 1 if a run uses all
    cores or a GPU."""
    import torch

    from grpo.model.device import SMALL_MODEL, free_memory, pick_device

    needed, ranks = 0, max(job.config.scale.gpus for job in jobs)
    for job in jobs:
        config = job.config
        try:
            shape = find_shape(config.model)
        except GrpoError:  # border: a name that only the trainer can resolve
            return 1
        if shape.parameters >= SMALL_MODEL or torch.device(pick_device(config.system)).type != "cpu":
            return 1
        predicted = memory_of(
            shape, Work.of(config, PROMPT_TOKENS), needs(config.loss, config.critic), PRECISIONS["float32"]
        )
        needed = max(needed, ranks * (PROGRAM + predicted.peak))
    return max(1, min(len(jobs), usable_cores() // ranks, free_memory(torch.device("cpu")) // needed))
