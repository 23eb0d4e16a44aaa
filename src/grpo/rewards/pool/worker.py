"""A worker process: confines itself, then calls rewards until the supervisor is gone."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from grpo.rewards.pool.confine import Limits, confine
from grpo.rewards.pool.descendants import Leftovers
from grpo.rewards.pool.invoke import Reward, invoke

SECONDS_BETWEEN_MESSAGES = 0.005
"""A message costs more than a quick call: the outcomes of several calls share one."""
ROW_BYTES = 4


def work(
    supervisor: Connection,
    output: int,
    rewards: Sequence[Reward],
    limits: Limits,
    current_row: mmap.mmap | bytearray,
) -> None:
    """Runs one job after another; never returns. `current_row` is memory shared with the supervisor: it names the row
    of the current call, in case the worker ends before it can report."""
    os.setsid()  # a process group that can be killed as one
    os.dup2(output, 1)
    os.dup2(output, 2)
    confine(limits)
    pid, leftovers = os.getpid(), Leftovers()
    kept: set[str] = set()
    """Keys of the episodes whose environments live here; their processes do too."""
    with suppress(EOFError, OSError):
        while True:
            reward, request, together = pickle.loads(supervisor.recv_bytes())
            count = len(request.texts)
            unsent: list[tuple[int, dict[str, object]]] = []
            sent_at = time.monotonic()
            for rows in [list(range(count))] if together else [[row] for row in range(count)]:
                current_row[:] = rows[0].to_bytes(ROW_BYTES, "little")
                called = request.only(rows)
                # A function that uses `random` gives a completion the same reward in every process.
                random.seed(called.seed)
                outcomes = invoke(rewards[reward], called, in_worker=True)
                signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that it has left set would end the next call
                with suppress(OSError, ValueError, AttributeError):  # the function may have closed or replaced it
                    sys.stdout.flush()
                if os.getpid() != pid:  # a child that the function forked and did not end
                    os._exit(0)
                for history, outcome in zip(called.histories, outcomes, strict=False):
                    (kept.add if outcome.kept else kept.discard)(history.key)
                if not kept:
                    leftovers.end_orphans()
                faults = {outcome.fault for outcome in outcomes} - {"", "mistake"}
                retry_each = bool(faults) and count > 1 and together
                # Out of memory or processes, or children left behind, which end with this worker: a new one continues.
                last = "crash" in faults or (not kept and leftovers.remain())
                unsent += [] if retry_each else [(row, vars(one)) for row, one in zip(rows, outcomes, strict=True)]
                soon = time.monotonic() < sent_at + SECONDS_BETWEEN_MESSAGES
                if soon and not faults and not last and rows[-1] < count - 1:
                    continue
                message = {"outcomes": unsent, "retry_each": retry_each, "last": last}
                supervisor.send_bytes(json.dumps(message).encode())
                unsent, sent_at = [], time.monotonic()
                if last:
                    break
    os._exit(0)
