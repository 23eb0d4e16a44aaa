"""Supervises reward workers: kills one that exceeds its time limit or crashes, and forks another.

`workers.Workers` starts it: `python -m grpo.rewards.pool.supervisor FD`. It loads the rewards once and forks workers
that have them loaded, so a killed worker is replaced in milliseconds. It is a new interpreter, without torch, CUDA and
the trainer's threads. When the trainer's end of the connection closes, for any reason, the supervisor ends with
everything under it.
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
from multiprocessing.connection import Connection, Pipe
from typing import Any

from grpo.errors import GrpoError
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.descendants import (
    LINUX,
    adopt_orphans,
    children,
    descendants,
    end_with_descendants,
    kill_all,
    worker_of,
)
from grpo.rewards.pool.invoke import PRINTED, Fault, Outcome, Reward
from grpo.rewards.pool.jobs import Batch, Job, Worker
from grpo.rewards.pool.loading import load
from grpo.rewards.pool.worker import ROW_BYTES, work

SECONDS_BETWEEN_REAPS = 0.1
"""An ended process counts against a worker's limit until it is reaped, and one call may run many programs."""
MAX_MESSAGE = 1 << 27
"""Bytes of a worker's message. Text that a function writes to the connection reads as the length of a longer one."""
KEPT_OUTPUT = 1000
"""Last bytes of a call's output that are reported if it goes wrong; the rest is read and dropped."""


class Supervisor:
    def __init__(self, trainer: Connection, rewards: Sequence[Reward], limits: Limits):
        self.trainer, self.rewards, self.limits = trainer, rewards, limits
        self.batches: dict[int, Batch] = {}
        self.queue: deque[Job] = deque()
        self.workers: list[Worker] = []
        self.keepers: dict[str, Worker] = {}
        """The worker of each episode that one keeps."""
        self.lost: set[str] = set()
        """Episodes whose worker has ended, which another one plays again."""
        self.selector = selectors.DefaultSelector()
        self.selector.register(trainer, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Runs until the trainer's end of the connection closes."""
        while True:
            self.assign_jobs()
            self._reap()
            for key, _ in self.selector.select(self._seconds_to_wait()):
                if key.data is None:
                    try:
                        self.receive()
                    except (EOFError, ConnectionError):  # the trainer has ended
                        end_with_descendants()
                elif key.data in self.workers:
                    self.read(key.data, key.fd)
            for worker in [worker for worker in self.workers if worker.job and worker.deadline <= time.monotonic()]:
                self.read(worker, worker.output)
                self.read(worker, worker.connection.fileno())
                if worker.job and worker.deadline <= time.monotonic():
                    self.fail(worker, "timeout", f"no result after {worker.seconds:g} s")

    def receive(self) -> None:
        number, requests = self.trainer.recv()
        if requests is None:
            self.batches[number].requested = True
        else:
            outcomes: list[list[list[Outcome | None]]] = [
                [[None] * len(request.texts) for request in requests] for _ in self.rewards
            ]
            self.batches[number] = Batch(outcomes, sum(len(rows) for reward in outcomes for rows in reward))
            for i, reward in enumerate(self.rewards):
                for group, request in enumerate(requests):
                    if request.texts:
                        rows = tuple(range(len(request.texts)))
                        self._enqueue(Job(number, i, group, rows, request, reward.batched))
        self._deliver(number)

    def assign_jobs(self) -> None:
        for worker in [worker for worker in self.workers if worker.job is None and worker.waiting]:
            self.assign(worker, worker.waiting.popleft())
        idle = [worker for worker in self.workers if worker.job is None]
        while self.queue:
            if len(self.workers) < self.limits.workers and all(worker.keeps for worker in idle):
                idle.append(self.start_worker())
            if not idle:
                return
            worker = min(idle, key=lambda each: len(each.keeps))
            idle.remove(worker)
            self.assign(worker, self.queue.popleft())

    def assign(self, worker: Worker, job: Job) -> None:
        worker.job, worker.remaining, worker.printed = job, list(job.rows), b""
        # An episode that was lost takes as many calls as it had turns, and the new one.
        again = len(job.request.histories[0].turns) if job.key in self.lost else 0
        worker.seconds = self.limits.seconds * (1 + again)
        worker.deadline = time.monotonic() + worker.seconds
        try:
            worker.connection.send_bytes(pickle.dumps((job.reward, job.request.only(job.rows), job.together)))
        except OSError:  # it ended while idle: not the fault of this job
            worker.job = None
            self.end_worker(worker)
            self.queue.appendleft(job)

    def start_worker(self) -> Worker:
        """Forks a worker."""
        ours, theirs = Pipe()
        readable, writable = os.pipe()
        current_row = mmap.mmap(-1, ROW_BYTES)
        pid = _fork()
        if pid == 0:
            for fd in (self.trainer.fileno(), ours.fileno(), readable, *self._descriptors()):
                os.close(fd)
            for other in self.workers:
                other.current_row.close()
            work(theirs, writable, self.rewards, self.limits, current_row)
        theirs.close()
        os.close(writable)
        os.set_blocking(readable, False)
        ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        worker = Worker(pid, ours, readable, ended, current_row)
        for fd in (ours.fileno(), readable, ended):
            if fd >= 0:
                self.selector.register(fd, selectors.EVENT_READ, worker)
        self.workers.append(worker)
        return worker

    def read(self, worker: Worker, fd: int) -> None:
        """Reads output or messages of a worker, or notices its end."""
        if fd == worker.output:
            with suppress(BlockingIOError):
                printed = os.read(worker.output, 1 << 16)
                worker.printed = (worker.printed + printed)[-KEPT_OUTPUT:]
                if not printed:  # all writers have closed it: it would be readable for ever
                    self._unregister(worker.output)
            return
        try:
            while worker in self.workers and worker.connection.poll():
                self.handle(worker, json.loads(worker.connection.recv_bytes(MAX_MESSAGE)))
        except (EOFError, ConnectionError):  # it has closed its end
            return self.fail(worker, "crash", "")
        except (OSError, ValueError, LookupError, TypeError):  # border: the function of some row wrote to it
            return self.fail(worker, "crash", "", known_row=False)
        if fd == worker.ended and worker in self.workers:
            self.fail(worker, "crash", "")

    def handle(self, worker: Worker, message: dict[str, Any]) -> None:
        """A message of a worker: outcomes of some rows, or that a call for several rows failed."""
        job = worker.job
        if job is None:
            return
        if message["retry_each"]:
            worker.job = None
            self._retry_each(job, job.rows)
        for row, fields in message["outcomes"]:
            outcome = Outcome(**fields)
            if outcome.fault:
                self.read(worker, worker.output)
            self._fill(job, job.rows[row], _with_output(outcome, worker.printed))
            worker.remaining.remove(job.rows[row])
            self._keep(worker, job.key, outcome.kept)
        worker.deadline, worker.printed = time.monotonic() + self.limits.seconds, b""
        if not worker.remaining:
            worker.job = None
        if message["last"]:
            job, worker.job = worker.job, None
            self.end_worker(worker)
            if job:
                self._queue_rest(job, worker.remaining)

    def fail(self, worker: Worker, fault: Fault, why: str, *, known_row: bool = True) -> None:
        """Ends a worker that hangs or has ended. Its call scores 0, or is made again completion by completion."""
        self.read(worker, worker.output)
        row = worker.failed_row() if worker.job else -1
        job, worker.job = worker.job, None
        status = self.end_worker(worker)
        if job is None:
            return
        self.lost.discard(job.key)  # over, not lost
        if len(worker.remaining) > 1 and (job.together or not known_row):
            return self._retry_each(job, worker.remaining)
        outcome = Outcome(fault=fault, why=why or _exit_reason(status))
        self._fill(job, row, _with_output(outcome, worker.printed))
        self._queue_rest(job, [other for other in worker.remaining if other != row])

    def end_worker(self, worker: Worker) -> int:
        """Kills a worker and everything it started; returns its wait status."""
        for fd in (worker.connection.fileno(), worker.output, worker.ended):
            self._unregister(fd)
        self.workers.remove(worker)
        self.lost |= worker.keeps
        for key in worker.keeps:
            del self.keepers[key]
        self.queue.extend(worker.waiting)
        below = descendants(worker.pid)
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        kill_all([worker.pid, *below])
        status = os.waitpid(worker.pid, 0)[1]
        worker.connection.close()
        worker.current_row.close()
        os.close(worker.output)
        if worker.ended >= 0:
            os.close(worker.ended)
        self._end_orphans()
        return status

    def _end_orphans(self) -> None:
        """Kills orphans of workers that have ended: they have become children of this process."""
        for _ in range(100):
            workers = {worker.pid for worker in self.workers}
            adopted = {pid: worker_of(pid) for pid in children(os.getpid()) if pid not in workers}
            orphans = [pid for pid, worker in adopted.items() if worker is not None and worker not in workers]
            kill_all(pid for orphan in orphans for pid in (orphan, *descendants(orphan)))
            for pid in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            if not orphans:
                return

    def _reap(self) -> None:
        """Reaps orphans that have ended, as every program in a sandbox does. Until then they count as processes of the
        worker."""
        workers = {worker.pid for worker in self.workers}
        with suppress(ChildProcessError):  # no children
            while LINUX and (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
                if dead.si_pid in workers:
                    return
                os.waitpid(dead.si_pid, 0)

    def _unregister(self, fd: int) -> None:
        if fd >= 0 and fd in self.selector.get_map():
            self.selector.unregister(fd)

    def _seconds_to_wait(self) -> float | None:
        deadlines = [worker.deadline for worker in self.workers if worker.job]
        return max(0.0, min(SECONDS_BETWEEN_REAPS, min(deadlines) - time.monotonic())) if deadlines else None

    def _descriptors(self) -> list[int]:
        return [fd for w in self.workers for fd in (w.connection.fileno(), w.output, w.ended) if fd >= 0]

    def _enqueue(self, job: Job) -> None:
        """The worker that keeps an episode is waited for, even if others are idle."""
        worker = self.keepers.get(job.key)
        (worker.waiting if worker else self.queue).append(job)

    def _keep(self, worker: Worker, key: str, kept: bool) -> None:
        self.lost.discard(key)
        if kept:
            worker.keeps.add(key)
            self.keepers[key] = worker
        elif keeper := self.keepers.pop(key, None):
            keeper.keeps.remove(key)

    def _retry_each(self, job: Job, rows: Sequence[int]) -> None:
        for row in rows:
            self.queue.append(Job(job.batch, job.reward, job.group, (row,), job.request, True))

    def _queue_rest(self, job: Job, rows: Sequence[int]) -> None:
        if rows:
            self.queue.append(Job(job.batch, job.reward, job.group, tuple(rows), job.request, job.together))

    def _fill(self, job: Job, row: int, outcome: Outcome) -> None:
        batch = self.batches[job.batch]
        batch.outcomes[job.reward][job.group][row] = outcome
        batch.missing -= 1
        self._deliver(job.batch)

    def _deliver(self, number: int) -> None:
        """Sends a complete batch once the trainer waits for it: sending earlier could block both ends."""
        batch = self.batches[number]
        if batch.requested and not batch.missing:
            del self.batches[number]
            self.trainer.send(batch.outcomes)


def _fork() -> int:
    """Forks; tries again for 5 s where the machine is out of processes."""
    for attempt in range(100):
        try:
            return os.fork()
        except BlockingIOError:
            if attempt == 99:
                raise
            time.sleep(0.05)
    raise AssertionError


def _exit_reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"its process exited with {os.waitstatus_to_exitcode(status)}"


def _with_output(outcome: Outcome, printed: bytes) -> Outcome:
    if not outcome.fault or outcome.fault == "mistake" or not printed:
        return outcome
    return Outcome(fault=outcome.fault, why=f"{outcome.why}{PRINTED}…{printed.decode(errors='replace')}")


def main() -> None:
    trainer = Connection(int(sys.argv[1]))
    adopt_orphans()
    path, pickled, limits = trainer.recv()
    sys.path[:] = path
    try:
        rewards = load(pickled, trainer)
    except GrpoError as error:
        return trainer.send(str(error))
    trainer.send([reward.required for reward in rewards])
    gc.freeze()  # garbage collection would copy the pages that workers share
    Supervisor(trainer, rewards, limits).run()


if __name__ == "__main__":
    main()
