"""Runs the jobs, as many at a time as the machine carries; each is `grpo train --resume`, so nothing is done twice."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from grpo.cli.compare.arms import Job
from grpo.config.schema import as_dict, resolve
from grpo.errors import GrpoError
from grpo.model.plan import PRECISIONS, Work, find_shape, memory_of, needs
from grpo.record.lock import RunLock
from grpo.record.store import Run

SECONDS_BETWEEN_LOOKS = 0.5
PROGRAM = 600_000_000
"""Bytes of a training process before it has a model: Python, torch, transformers."""
PROMPT_TOKENS = 256
"""Guessed, for how much memory a run takes."""


@dataclass
class Running:
    job: Job
    process: subprocess.Popen[bytes] | None
    """None: another process, perhaps of a comparison that was killed, is at it; it is waited for."""
    errors: IO[bytes]


def run_all(jobs: Sequence[Job], at_once: int, look: Callable[[Sequence[Job], Sequence[Job]], None]) -> None:
    """`look(running, done)` is called now and then. The first failure ends it; the others stop with a checkpoint."""
    done = [job for job in jobs if is_finished(job)]
    waiting = [job for job in jobs if job not in done]
    running: list[Running] = []
    with ExitStack() as undo:
        undo.callback(_stop, running)
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), undo.enter_context(tempfile.TemporaryFile())))
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for entry in [entry for entry in running if _ended(entry)]:
                running.remove(entry)
                if entry.process is None:
                    waiting.insert(0, entry.job)  # to see whether anything is left to do
                else:
                    _check(entry)
                    done.append(entry.job)
            look([entry.job for entry in running], done)


def _stop(running: Sequence[Running]) -> None:
    """Each ends with a checkpoint, after its step."""
    processes = [entry.process for entry in running if entry.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def is_finished(job: Job) -> bool:
    """Whether the run is there, came to its end, and is this very one."""
    if not (job.folder / job.name / "run.db").is_file():
        return False
    with Run.open(job.folder, job.name, readonly=True) as run:
        return run.summary()["status"] == "finished" and run.config == as_dict(resolve(job.config))


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
    told = entry.errors.read().decode(errors="replace").strip().splitlines()
    reason = told[-1].removeprefix("grpo: ") if told else f"exit code {entry.process.returncode}"
    raise GrpoError(f"run {entry.job.name}: {reason}; mend that and compare again: what is done is kept")


def jobs_at_once(jobs: Sequence[Job]) -> int:
    """One per core for models that train on one thread; one alone where a run takes all cores, or the GPU."""
    import torch

    from grpo.model.device import SMALL_MODEL, free_memory, pick_device

    needed = 0
    for job in jobs:
        config = job.config
        try:
            shape = find_shape(config.model)
        except GrpoError:  # border: a name only the trainer understands
            return 1
        if shape.parameters >= SMALL_MODEL or torch.device(pick_device(config.system)).type != "cpu":
            return 1
        predicted = memory_of(
            shape, Work.of(config, PROMPT_TOKENS), needs(config.loss, config.critic), PRECISIONS["float32"]
        )
        needed = max(needed, PROGRAM + predicted.peak)
    return max(1, min(len(jobs), len(os.sched_getaffinity(0)), free_memory(torch.device("cpu")) // needed))
