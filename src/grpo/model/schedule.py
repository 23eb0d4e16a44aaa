"""The learning rate as a function of the step only, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math


def learning_rate(peak: float, step: int, *, steps: int, warmup_steps: int, schedule: str) -> float:
    """Linear warm-up to `peak`, then constant, linear to zero, or a cosine to zero at `steps`.

    >>> [learning_rate(1.0, step, steps=6, warmup_steps=2, schedule="linear") for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)
