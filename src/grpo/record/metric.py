"""The definition of one metric."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = "share, 0 to 1"
NATS = "nats"


@dataclass(frozen=True)
class Metric:
    """One row of a table of metrics.

    >>> Metric("Share of completions that a limit ended.", SHARE, "Below about 0.1.").unit
    'share, 0 to 1'
    """

    definition: str
    unit: str
    healthy: str
    """Values of a healthy run, and what other values mean."""
