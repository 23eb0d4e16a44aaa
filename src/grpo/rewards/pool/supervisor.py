"""The process that keeps the workers: `python -m grpo.rewards.pool.supervisor FD`, started by `workers.Workers`.

It loads the rewards once and forks workers that have them loaded, so a worker that had to be killed is replaced in
milliseconds. It is a fresh interpreter: no torch, no CUDA and none of the trainer's threads come along. It ends, and
everything under it with it, when the trainer's end of the connection closes, however the trainer ended.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import pickle
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

from grpo.errors import GrpoError
from grpo.rewards.pool.confine import LINUX, Limits, adopt_orphans, descendants
from grpo.rewards.pool.invoke import Answers, Fault, Outcome, Reward
from grpo.rewards.pool.worker import PLACE_BYTES, work

SECONDS_TO_LOAD = 300
SECONDS_TO_BURIAL = 0.1
"""How long what has ended may count as a process while a call goes on: a call may run many programs."""
KEPT_OUTPUT = 1000
"""Bytes of what a call printed that are told if it goes wrong; the rest is read and dropped."""


@dataclass(eq=False)
class Batch:
    """Outcomes by reward, group and completion, filled in as they come."""

    outcomes: list[list[list[Outcome | None]]]
    left: int
    asked_for: bool = False


@dataclass(frozen=True)
class Job:
    """Completions of one group for one reward."""

    batch: int
    reward: int
    group: int
    rows: tuple[int, ...]
    answers: Answers
    together: bool
    """In a single call."""


@dataclass(eq=False)
class Worker:
    pid: int
    connection: Connection
    output: int
    """Where its stdout and stderr can be read."""
    ended: int
    """Becomes readable when the process ends; -1 where the system has no such thing."""
    place: mmap.mmap
    """Shared with it: which row of its job it is at."""
    job: Job | None = None
    todo: list[int] = field(default_factory=list)
    """Rows of the job without an outcome."""
    deadline: float = 0.0
    said: bytes = b""

    def at(self) -> int:
        """The row that it was called for last, of those without an outcome."""
        place = int.from_bytes(self.place[:], "little")
        rows = self.job.rows if self.job else ()
        return rows[place] if place < len(rows) and rows[place] in self.todo else self.todo[0]


class Foreman:
    def __init__(self, trainer: Connection, rewards: Sequence[Reward], limits: Limits):
        self.trainer, self.rewards, self.limits = trainer, rewards, limits
        self.batches: dict[int, Batch] = {}
        self.queue: deque[Job] = deque()
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(trainer, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Until the trainer's end closes."""
        while True:
            self.hand_out()
            self._bury()
            for key, _ in self.selector.select(self._patience()):
                if key.data is None:
                    try:
                        self.listen()
                    except (EOFError, ConnectionError):  # the trainer has ended
                        return self.dismiss()
                elif key.data in self.workers:
                    self.attend(key.data, key.fd)
            for worker in [worker for worker in self.workers if worker.job and worker.deadline <= time.monotonic()]:
                self.attend(worker, worker.output)
                self.attend(worker, worker.connection.fileno())
                if worker.job and worker.deadline <= time.monotonic():
                    self.lose(worker, "timeout", f"no result after {self.limits.seconds:g} s")

    def listen(self) -> None:
        number, groups = self.trainer.recv()
        if groups is None:
            self.batches[number].asked_for = True
        else:
            outcomes: list[list[list[Outcome | None]]] = [
                [[None] * len(answers.texts) for answers in groups] for _ in self.rewards
            ]
            self.batches[number] = Batch(outcomes, sum(len(rows) for reward in outcomes for rows in reward))
            for i, reward in enumerate(self.rewards):
                for group, answers in enumerate(groups):
                    if answers.texts:
                        rows = tuple(range(len(answers.texts)))
                        self.queue.append(Job(number, i, group, rows, answers, reward.batched))
        self._deliver(number)

    def hand_out(self) -> None:
        idle = [worker for worker in self.workers if worker.job is None]
        while self.queue:
            if not idle and len(self.workers) < self.limits.workers:
                idle.append(self.hire())
            if not idle:
                return
            worker, job = idle.pop(), self.queue.popleft()
            worker.job, worker.todo, worker.said = job, list(job.rows), b""
            worker.deadline = time.monotonic() + self.limits.seconds
            try:
                worker.connection.send_bytes(pickle.dumps((job.reward, job.answers.only(job.rows), job.together)))
            except OSError:  # it ended while it had nothing to do: not this job's doing
                self.queue.appendleft(job)
                worker.job = None
                self.discharge(worker)

    def hire(self) -> Worker:
        """Forks a worker."""
        ours, theirs = Pipe()
        readable, writable = os.pipe()
        place = mmap.mmap(-1, PLACE_BYTES)
        pid = _fork()
        if pid == 0:
            for fd in (self.trainer.fileno(), ours.fileno(), readable, *self._descriptors()):
                os.close(fd)
            for other in self.workers:
                other.place.close()
            work(theirs, writable, self.rewards, self.limits, place)
        theirs.close()
        os.close(writable)
        os.set_blocking(readable, False)
        ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        worker = Worker(pid, ours, readable, ended, place)
        for fd in (ours.fileno(), readable, ended):
            if fd >= 0:
                self.selector.register(fd, selectors.EVENT_READ, worker)
        self.workers.append(worker)
        return worker

    def attend(self, worker: Worker, fd: int) -> None:
        """Something can be read, or the worker has ended."""
        if fd == worker.output:
            with suppress(BlockingIOError):
                said = os.read(worker.output, 1 << 16)
                worker.said = (worker.said + said)[-KEPT_OUTPUT:]
                if not said:  # all its ends are closed, and would be told to be so for ever
                    self._ignore(worker.output)
            return
        try:
            while worker in self.workers and worker.connection.poll():
                self.note(worker, json.loads(worker.connection.recv_bytes()))
        except (EOFError, OSError, ValueError):  # it has closed its end, or what is left of it writes nonsense
            return self.lose(worker, "crash", "")
        if fd == worker.ended and worker in self.workers:
            self.lose(worker, "crash", "")

    def note(self, worker: Worker, message: dict[str, Any]) -> None:
        """A worker's message: outcomes of some rows, or that a call for several rows went wrong."""
        job = worker.job
        if job is None:
            return
        if message["apart"]:
            worker.job = None
            self._apart(job)
        for place, outcome in message["outcomes"]:
            told = Outcome(**outcome)
            if told.fault:
                self.attend(worker, worker.output)
            self._fill(job, job.rows[place], _with_output(told, worker.said))
            worker.todo.remove(job.rows[place])
        worker.deadline, worker.said = time.monotonic() + self.limits.seconds, b""
        if not worker.todo:
            worker.job = None
        if message["last"]:
            job, worker.job = worker.job, None
            self.discharge(worker)
            if job:
                self._later(job, worker.todo)

    def lose(self, worker: Worker, fault: Fault, why: str) -> None:
        """The worker hangs or has ended. Its call scores 0, or is tried again completion by completion."""
        self.attend(worker, worker.output)
        row = worker.at() if worker.job else -1
        job, worker.job = worker.job, None
        status = self.discharge(worker)
        if job is None:
            return
        if job.together and len(job.rows) > 1:
            return self._apart(job)
        outcome = Outcome(fault=fault, why=why or _ending(status))
        self._fill(job, row, _with_output(outcome, worker.said))
        self._later(job, [other for other in worker.todo if other != row])

    def discharge(self, worker: Worker) -> int:
        """Ends a worker and everything it started; its wait status."""
        for fd in (worker.connection.fileno(), worker.output, worker.ended):
            self._ignore(fd)
        self.workers.remove(worker)
        below = descendants(worker.pid)
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        for pid in (worker.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        status = os.waitpid(worker.pid, 0)[1]
        worker.connection.close()
        worker.place.close()
        os.close(worker.output)
        if worker.ended >= 0:
            os.close(worker.ended)
        self._end_orphans()
        return status

    def dismiss(self) -> None:
        for worker in list(self.workers):
            self.discharge(worker)

    def _end_orphans(self) -> None:
        """What a worker's children left behind has become our child."""
        for _ in range(100):
            ours = {worker.pid for worker in self.workers}
            known = {pid for worker in ours for pid in (worker, *descendants(worker))}
            strays = [pid for pid in descendants(os.getpid()) if pid not in known]
            for pid in strays:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in strays:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            if not strays:
                return

    def _bury(self) -> None:
        """Waits for what a worker's children left behind and has ended, as every program in a sandbox does: until then
        it counts among the processes the worker may have."""
        workers = {worker.pid for worker in self.workers}
        with suppress(ChildProcessError):  # there is none
            while LINUX and (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
                if dead.si_pid in workers:
                    return
                os.waitpid(dead.si_pid, 0)

    def _ignore(self, fd: int) -> None:
        if fd >= 0 and fd in self.selector.get_map():
            self.selector.unregister(fd)

    def _patience(self) -> float | None:
        deadlines = [worker.deadline for worker in self.workers if worker.job]
        return max(0.0, min(SECONDS_TO_BURIAL, min(deadlines) - time.monotonic())) if deadlines else None

    def _descriptors(self) -> list[int]:
        return [fd for w in self.workers for fd in (w.connection.fileno(), w.output, w.ended) if fd >= 0]

    def _apart(self, job: Job) -> None:
        for row in job.rows:
            self.queue.append(Job(job.batch, job.reward, job.group, (row,), job.answers, True))

    def _later(self, job: Job, rows: Sequence[int]) -> None:
        if rows:
            self.queue.append(Job(job.batch, job.reward, job.group, tuple(rows), job.answers, job.together))

    def _fill(self, job: Job, row: int, outcome: Outcome) -> None:
        batch = self.batches[job.batch]
        batch.outcomes[job.reward][job.group][row] = outcome
        batch.left -= 1
        self._deliver(job.batch)

    def _deliver(self, number: int) -> None:
        """Only when asked: then the trainer listens, and neither waits for the other to read."""
        batch = self.batches[number]
        if batch.asked_for and not batch.left:
            del self.batches[number]
            self.trainer.send(batch.outcomes)


def _fork() -> int:
    """Again after a moment where the machine has no process to give."""
    for attempt in range(100):
        try:
            return os.fork()
        except BlockingIOError:
            if attempt == 99:
                raise
            time.sleep(0.05)
    raise AssertionError


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"its process exited with {os.waitstatus_to_exitcode(status)}"


def _with_output(outcome: Outcome, said: bytes) -> Outcome:
    if not outcome.fault or outcome.fault == "mistake" or not said:
        return outcome
    return Outcome(fault=outcome.fault, why=f"{outcome.why}\nprinted: …{said.decode(errors='replace')}")


def main() -> None:
    trainer = Connection(int(sys.argv[1]))
    adopt_orphans()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS_TO_LOAD)  # loading that never ends ends this process
    path, packed, limits = trainer.recv()
    sys.path[:] = path
    try:
        rewards = pickle.loads(packed)
        for reward in rewards:
            reward.load()
    except GrpoError as error:
        return trainer.send(str(error))
    signal.alarm(0)
    trainer.send("")
    gc.freeze()  # so that collecting garbage does not copy the pages that workers share
    Foreman(trainer, rewards, limits).run()


if __name__ == "__main__":
    main()
