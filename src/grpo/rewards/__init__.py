"""Rewards: a `Scorer` gives completions their rewards.

A task with `trusted = True` is scored in the trainer's process. All other code of tasks and reward functions runs in
worker processes that can be killed (`pool/`).
"""

from __future__ import annotations

from grpo.rewards.pending import Pending
from grpo.rewards.pool.invoke import error_line
from grpo.rewards.scoring import Scorer

__all__ = ["Pending", "Scorer", "error_line"]
