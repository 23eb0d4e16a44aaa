"""Rewards in processes that can be killed, seen from the trainer.

A call that hangs, exits, forks without end or eats all memory costs one completion. The processes are kept by a
foreman, a process of its own, so scoring goes on while the trainer does something else.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from typing import IO

from grpo.errors import GrpoError
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import Answers, Outcome, Reward

MOST_WORKERS = 16
SECONDS_TO_END = 10.0


SCORING = "GRPO_SCORING"
"""Set in the environment of processes that score."""


def refuse_while_scoring() -> None:
    """A script with a reward in it is imported by the processes that score. One that trains at its top level would
    train there too, in ever more processes."""
    if SCORING in os.environ:
        raise GrpoError(
            "field reward: the file of a reward or task trains when it is imported; put that under "
            'if __name__ == "__main__":'
        )


class Workers:
    """Starts at once and loads in the background; `ready` waits for it.

    >>> from grpo.rewards.pool.invoke import TaskReward
    >>> from grpo.tasks import load_task
    >>> workers = Workers([TaskReward(load_task("arithmetic"))], Limits(workers=1))
    >>> from grpo.types import Problem
    >>> finish = workers.start([Answers(Problem("p", "6*7=", "42"), ("42", "41"))])
    >>> [[[outcome.parts for outcome in rows] for rows in groups] for groups in finish()]
    [[[{'correct': 1.0}, {'correct': 0.0}]]]
    >>> workers.close()
    """

    def __init__(self, rewards: Sequence[Reward], limits: Limits):
        self.names = [reward.name for reward in rewards]
        self.packed = pickle.dumps(list(rewards))
        self.limits = replace(limits, workers=limits.workers or min(os.cpu_count() or 1, MOST_WORKERS))
        self.numbers = count()
        self.under_way: dict[int, Sequence[Answers]] = {}
        self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        surroundings = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            # Checkers that walk through sets would give other results in every process.
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            SCORING: "1",
        }
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grpo.rewards.pool.supervisor", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **surroundings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.complaints,
            start_new_session=True,  # Ctrl-C is for the trainer, which then finishes its step
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.loaded = False
        self._end = weakref.finalize(self, _end, self.connection, self.process, self.complaints)
        self.connection.send((sys.path, self.packed, self.limits))

    def ready(self) -> None:
        """Raises where a reward cannot be loaded."""
        if self.loaded:
            return
        try:
            problem = self.connection.recv()
        except (EOFError, ConnectionError):
            code = self.process.wait()
            what = "took too long" if code == -14 else f"ended its process with {code}"
            problem = f"field reward: loading {', '.join(self.names)} {what}; import the file by hand to see why"
        if problem:
            raise GrpoError(problem)
        self.loaded = True

    def start(self, groups: Sequence[Answers]) -> Callable[[], list[list[list[Outcome]]]]:
        """Begins to score; what is returned waits for the outcomes, by reward, group and completion."""
        self.ready()
        number = next(self.numbers)
        self.under_way[number] = groups
        try:
            self.connection.send((number, groups))
        except OSError:
            self._again()
        return lambda: self._finish(number)

    def _finish(self, number: int) -> list[list[list[Outcome]]]:
        try:
            outcomes = self._ask(number)
        except (EOFError, OSError):  # the foreman was killed: for want of memory, perhaps
            self._again()
            try:
                outcomes = self._ask(number)
            except (EOFError, OSError):
                raise GrpoError(
                    f"field reward: the process that scores {', '.join(self.names)} was killed twice, perhaps for want "
                    f"of memory{self._last_complaint()}; lower scoring.workers or scoring.memory_gb"
                ) from None
        del self.under_way[number]
        return outcomes

    def _ask(self, number: int) -> list[list[list[Outcome]]]:
        self.connection.send((number, None))
        return self.connection.recv()

    def _last_complaint(self) -> str:
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def _again(self) -> None:
        self.close()
        self._spawn()
        self.ready()
        for number, groups in self.under_way.items():
            self.connection.send((number, groups))

    def close(self) -> None:
        """Ends the foreman and everything under it."""
        self._end()


def _end(connection: Connection, process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
    connection.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:  # still loading, for instance
        process.kill()
        process.wait()
    complaints.close()
