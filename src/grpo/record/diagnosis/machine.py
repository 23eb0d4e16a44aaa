"""Findings in the machine: ranks that wait for each other."""

from __future__ import annotations

from grpo.record.diagnosis.history import WINDOW, Finding, History, mean

LEAST_IDLE = 0.5
"""Share of the time above which a rank's waiting counts."""
LEAST_SECONDS = 1.0
"""Seconds of waiting in a step above which it counts: where steps take milliseconds, as on a CPU, meeting takes most of
the time, and there is little to gain."""


def idle_rank(history: History) -> Finding | None:
    """A rank waits for the others, or for the network, most of the time."""
    shares = history.ranks.idle(history.last_rows[-WINDOW:]) if history.ranks else []
    if not shares:
        return None
    most, least = max(shares), min(shares)
    seconds = most * mean(history.last("seconds"))
    if most <= LEAST_IDLE or seconds <= LEAST_SECONDS:
        return None
    idle, busy = (history.ranks.name(shares.index(share)) for share in (most, least))
    waits = f"{idle} is idle for {most:.0%} of a step ({seconds:.1f} s)"
    if least > LEAST_IDLE:
        return history.found(
            "idle_rank",
            most,
            f"{waits}, and every rank for {least:.0%} or more (ranks wait for the network)",
            "give a step more work (--prompts-per-step), or use fewer ranks or a faster link (grpo plan predicts both)",
        )
    return history.found(
        "idle_rank",
        most,
        f"{waits}, waiting for {busy}, which is idle for {least:.0%}",
        "give each rank several prompts (--prompts-per-step) and cut long completions (--max-new-tokens); if it is "
        "always the same rank, check that its machine is as fast as the others",
    )
