"""Named points at which tests kill a run, to show that it survives each of them.

With `GRPO_KILL_AT=checkpoint.renamed` the process sends itself SIGKILL at that point; with `checkpoint.renamed:3`, the
third time it gets there.
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
    """Marks the point `name` in the code."""
    global _remaining
    if name == _name:
        _remaining -= 1
        if _remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
