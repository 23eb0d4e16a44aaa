"""Which evaluation of a run is the best: the one whose checkpoint is kept and exported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpo.errors import GrpoError

Row = Mapping[str, Any]
"""Metrics of one evaluation."""
USUAL = ("accuracy", "reward_mean")


def rank(row: Row, wanted: str = "") -> tuple[float, ...] | None:
    """Sort key of an evaluation: the metric that `checkpoints.best` names, then accuracy, then mean reward. None where
    it has none of them.

    >>> rank({"accuracy": 0.5, "reward_mean": 0.7}), rank({"reward_mean": 0.7}), rank({"accuracy": None})
    ((0.5, 0.7), (-inf, 0.7), None)
    >>> rank({"accuracy": 0.5, "reward_mean": 0.7, "part/brief": 0.1}, "brief")
    (0.1, 0.5, 0.7)
    """
    if wanted and metric_named(wanted, row) is None:
        return None
    names = ([metric_named(wanted, row)] if wanted else []) + [*USUAL]
    values = tuple(-math.inf if row.get(str(name)) is None else float(row[str(name)]) for name in names)
    return values if max(values) > -math.inf else None


def metric_named(wanted: str, row: Row) -> str | None:
    """The metric of an evaluation that `checkpoints.best` names; None where it has none."""
    usual = "reward_mean" if wanted == "reward" else wanted
    names = (usual, f"part/{wanted}", f"logged/{wanted}", f"{wanted}_share")
    return next((name for name in names if row.get(name) is not None), None)


def check_best(wanted: str, row: Row) -> None:
    """Raises GrpoError where `checkpoints.best` names nothing that the evaluation has."""
    if wanted and metric_named(wanted, row) is None:
        known = ["reward" if name == "reward_mean" else name.removeprefix("part/") for name in row]
        raise GrpoError(
            f"field checkpoints.best: evaluations of this run have no {wanted!r}; they have {', '.join(known)}"
        )
