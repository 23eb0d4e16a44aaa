"""What a worker does: confines itself, then calls rewards until the foreman is gone."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from grpo.rewards.call import Reward, call
from grpo.rewards.confine import Limits, confine


def work(foreman: Connection, output: int, rewards: Sequence[Reward], limits: Limits) -> None:
    """In a worker: job after job; never returns."""
    os.setsid()  # a group of its own, to be killed as one
    os.dup2(output, 1)
    os.dup2(output, 2)
    confine(limits)
    me = os.getpid()
    with suppress(EOFError, OSError):
        while True:
            reward, answers, together = pickle.loads(foreman.recv_bytes())
            count = len(answers.texts)
            for rows in [list(range(count))] if together else [[row] for row in range(count)]:
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
                told = [] if apart else [(row, vars(one)) for row, one in zip(rows, outcomes, strict=True)]
                message = {"outcomes": told, "apart": apart, "last": last}
                foreman.send_bytes(json.dumps(message).encode())
    os._exit(0)
