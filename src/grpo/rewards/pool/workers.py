"""The worker processes, as the trainer uses them.

A call that hangs, exits, forks without end or uses up all memory costs one completion. A supervisor process keeps the
workers, so scoring continues while the trainer does something else.
"""

from __future__ import annotations

import os
import signal
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

import cloudpickle

from grpo.distributed.host import usable_cores
from grpo.errors import GrpoError
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import Outcome, Request, Reward

MAX_WORKERS = 16
SECONDS_TO_END = 10.0
SCORING = "GRPO_SCORING"
"""Environment variable of the supervisor and its workers."""


def refuse_while_scoring() -> None:
    """Refuses to train in a supervisor: it imports the file of a reward, and a file that trains at its top level would
    start a supervisor of its own, and so on."""
    if SCORING in os.environ:
        raise GrpoError(
            "field reward: the file of a reward or task trains when it is imported; put that under "
            'if __name__ == "__main__":'
        )


def pickled(reward: Reward) -> bytes:
    """A pickle that holds functions and classes of a script or notebook by value."""
    try:
        return cloudpickle.dumps(reward)
    except Exception as error:  # border: people's objects, which may raise anything when they are pickled
        raise GrpoError(
            f"{reward.name}: cannot be sent to a worker process ({type(error).__name__}: {error}); refer only to "
            "objects that can be pickled, or create them in the function"
        ) from error


class Workers:
    """A pool of workers. It starts at once and loads in the background; `ready` waits for it.

    >>> from grpo.rewards.pool.invoke import TaskReward
    >>> from grpo.tasks import load_task
    >>> workers = Workers([TaskReward(load_task("arithmetic"))], Limits(workers=1))
    >>> from grpo.types import Problem
    >>> finish = workers.start([Request(Problem("p", "6*7=", "42"), ("42", "41"))])
    >>> [[[outcome.parts for outcome in rows] for rows in groups] for groups in finish()]
    [[[{'correct': 1.0}, {'correct': 0.0}]]]
    >>> workers.close()
    """

    def __init__(self, rewards: Sequence[Reward], limits: Limits):
        self.names = [reward.name for reward in rewards]
        self.pickled = [(reward.name, pickled(reward)) for reward in rewards]
        self.limits = replace(limits, workers=limits.workers or min(usable_cores(), MAX_WORKERS))
        self.numbers = count()
        self.in_flight: dict[int, Sequence[Request]] = {}
        self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            # The order of sets, and so some results, would differ between processes.
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            SCORING: "1",
        }
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grpo.rewards.pool.supervisor", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.stderr,
            start_new_session=True,  # Ctrl-C reaches only the trainer, which then finishes its step
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.loaded = False
        self.required: list[tuple[str, ...]] = []
        """Parameters of each reward that the data must have; known once they are loaded."""
        self._end = weakref.finalize(self, _end, self.connection, self.process, self.stderr)
        self.connection.send((sys.path, self.pickled, self.limits))

    def ready(self) -> None:
        """Raises where a reward cannot be loaded."""
        if self.loaded:
            return
        try:
            found: str | list[tuple[str, ...]] = self.connection.recv()
        except (EOFError, ConnectionError):
            code = self.process.wait()
            what = "took too long" if code == -signal.SIGALRM else f"ended its process with {code}"
            found = f"field reward: loading {', '.join(self.names)} {what}; import the file by hand to see why"
        if isinstance(found, str):
            raise GrpoError(found)
        self.loaded, self.required = True, found

    def start(self, requests: Sequence[Request]) -> Callable[[], list[list[list[Outcome]]]]:
        """Starts to score. The function returned waits for the outcomes, by reward, request and completion."""
        self.ready()
        number = next(self.numbers)
        self.in_flight[number] = requests
        try:
            self.connection.send((number, requests))
        except OSError:
            self._restart()
        return lambda: self._finish(number)

    def _finish(self, number: int) -> list[list[list[Outcome]]]:
        try:
            outcomes = self._wait_for(number)
        except (EOFError, OSError):  # the supervisor was killed, perhaps because memory ran out
            self._restart()
            try:
                outcomes = self._wait_for(number)
            except (EOFError, OSError):
                raise GrpoError(
                    f"field reward: the process that scores {', '.join(self.names)} was killed twice, perhaps because "
                    f"memory ran out{self._last_error()}; lower scoring.workers or scoring.memory_gb"
                ) from None
        del self.in_flight[number]
        return outcomes

    def _wait_for(self, number: int) -> list[list[list[Outcome]]]:
        self.connection.send((number, None))
        return self.connection.recv()

    def _last_error(self) -> str:
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def _restart(self) -> None:
        self.close()
        self._spawn()
        self.ready()
        for number, requests in self.in_flight.items():
            self.connection.send((number, requests))

    def close(self) -> None:
        """Ends the supervisor and everything under it."""
        self._end()


def _end(connection: Connection, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    connection.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:  # stopped, or loading with Python's lock held
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    stderr.close()
