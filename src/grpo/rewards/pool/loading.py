"""Loads rewards in the supervisor. Their files may take long to import, never return, or outlive the trainer."""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from grpo.errors import GrpoError
from grpo.rewards.pool.descendants import end_with_descendants
from grpo.rewards.pool.invoke import Reward

SECONDS_TO_LOAD = 300


def load(pickled: Sequence[tuple[str, bytes]], trainer: Connection) -> list[Reward]:
    """The rewards, by name and pickle. Ends this process if that takes too long or the trainer ends meanwhile."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS_TO_LOAD)
    with _ending_with(trainer):
        rewards = [_loaded(name, content) for name, content in pickled]
    signal.alarm(0)
    return rewards


def _loaded(name: str, content: bytes) -> Reward:
    try:
        reward: Reward = pickle.loads(content)
        reward.load()
    except GrpoError:
        raise
    except Exception as error:  # border: people's code, which the pickle imports and calls
        reason = f"{type(error).__name__}: {error}"
        raise GrpoError(f"{name}: cannot be loaded in a worker process ({reason})") from error
    return reward


@contextmanager
def _ending_with(trainer: Connection) -> Iterator[None]:
    """Ends this process if the trainer ends in this context. The trainer sends nothing meanwhile, so a readable
    connection is a closed one."""
    until, done = os.pipe()

    def watch() -> None:
        if until not in select.select([trainer.fileno(), until], [], [])[0]:
            end_with_descendants()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.close(done)
        thread.join()  # workers are forked from a process without threads
        os.close(until)
