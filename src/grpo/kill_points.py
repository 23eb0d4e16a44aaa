"""Named points at which tests kill a run, to show that it survives each of them.

With `GRPO_KILL_AT=checkpoint.renamed` the process sends itself SIGKILL at that point; with `checkpoint.renamed:3`, the
third time it gets there; with `checkpoint.renamed:3@0`, on rank 0 only.
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
ROUND = "episode.round"
"""The point between two turns of episodes: their answers have arrived, and have not been read."""
STATIONS = ("groups.gathered", "gradients.reduced", "weights.published", "checkpoint.gathered")
"""Points at which the ranks of a run have just exchanged something. Weights are published if the optimizer is sharded.
Of the other points, ranks other than 0 pass those of an update only."""

_place, _, _rank = os.environ.get("GRPO_KILL_AT", "").partition("@")
_name, _, _count = _place.partition(":")
_remaining = int(_count or 1)


def point(name: str) -> None:
    """Marks the point `name` in the code."""
    global _remaining
    if name == _name and _rank in ("", os.environ.get("RANK", "0")):
        _remaining -= 1
        if _remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
