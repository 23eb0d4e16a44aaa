"""What a worker does: confines itself, then calls rewards until the foreman is gone."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from grpo.rewards.pool.confine import Limits, confine
from grpo.rewards.pool.invoke import Reward, call

SECONDS_BETWEEN_MESSAGES = 0.005
"""A message costs more than a quick call: what comes of several goes into one."""
PLACE_BYTES = 4


def work(
    foreman: Connection, output: int, rewards: Sequence[Reward], limits: Limits, place: mmap.mmap | bytearray
) -> None:
    """In a worker: job after job; never returns. `place` is where the foreman finds the row that is being called for,
    should the worker not live to tell."""
    os.setsid()  # a group of its own, to be killed as one
    os.dup2(output, 1)
    os.dup2(output, 2)
    confine(limits)
    me = os.getpid()
    with suppress(EOFError, OSError):
        while True:
            reward, answers, together = pickle.loads(foreman.recv_bytes())
            count = len(answers.texts)
            told: list[tuple[int, dict[str, object]]] = []
            said_at = time.monotonic()
            for rows in [list(range(count))] if together else [[row] for row in range(count)]:
                place[:] = rows[0].to_bytes(PLACE_BYTES, "little")
                # The same completion gets the same reward in whichever process, even where the function throws dice.
                random.seed(answers.problem.id)
                outcomes = call(rewards[reward], answers.only(rows))
                with suppress(OSError, ValueError, AttributeError):  # it is people's to close or replace
                    sys.stdout.flush()
                if os.getpid() != me:  # a child that the function forked and forgot to end
                    os._exit(0)
                faults = {outcome.fault for outcome in outcomes} - {"", "mistake"}
                apart = bool(faults) and count > 1 and together
                last = "crash" in faults  # out of memory or processes: a fresh one goes on
                told += [] if apart else [(row, vars(one)) for row, one in zip(rows, outcomes, strict=True)]
                soon = time.monotonic() < said_at + SECONDS_BETWEEN_MESSAGES
                if soon and not faults and rows[-1] < count - 1:
                    continue
                message = {"outcomes": told, "apart": apart, "last": last}
                foreman.send_bytes(json.dumps(message).encode())
                told, said_at = [], time.monotonic()
    os._exit(0)
