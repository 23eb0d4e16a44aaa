"""Named instants at which a run can be killed, so that tests prove it survives each of them.

`GRPO_KILL_AT=checkpoint.renamed` (or `checkpoint.renamed:3`, the third time) makes the process kill itself there, with
the signal that cannot be caught. Nothing else reads that variable.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "update.gradients",
    "update.stepped",
    "record.begun",
    "record.written",
    "record.committed",
    "checkpoint.begun",
    "checkpoint.model",
    "checkpoint.optimizer",
    "checkpoint.manifest",
    "checkpoint.renamed",
    "checkpoint.pruning",
    "checkpoint.pruned",
)

_name, _, _count = os.environ.get("GRPO_KILL_AT", "").partition(":")
_remaining = int(_count or 1)


def point(name: str) -> None:
    """The run stands at this instant."""
    global _remaining
    if name == _name:
        _remaining -= 1
        if _remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
