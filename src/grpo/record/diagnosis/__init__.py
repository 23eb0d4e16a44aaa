"""Findings: what goes wrong in a run, each with its step, its number and what to try, the probable cause first.

`diagnose` depends only on the record. docs/diagnosis.md lists the findings with their thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo.record.diagnosis import completions, machine, policy, progress
from grpo.record.diagnosis.causes import KINDS, explained, ranked
from grpo.record.diagnosis.history import WINDOW, Finding, History

if TYPE_CHECKING:
    from grpo.record.store import Run

__all__ = ["CHECKS", "KINDS", "Finding", "History", "diagnose", "explained"]

CHECKS: tuple[Callable[[History], Finding | None], ...] = (
    completions.unscored,
    completions.truncated,
    completions.one_sided,
    completions.length_change,
    completions.duplicates,
    completions.saturated_part,
    policy.trained_observations,
    policy.sampler_gap,
    policy.entropy_collapse,
    policy.kl,
    policy.clipped,
    policy.ratios,
    policy.spike,
    progress.reward_hacking,
    progress.overfitting,
    progress.reward_flat,
    progress.reward_fall,
    machine.idle_rank,
)

EARLY_CHECKS: tuple[Callable[[History], Finding | None], ...] = (policy.trained_observations, policy.diverged)
"""Checks of a run's first ten steps."""


def diagnose(record: History | Run) -> list[Finding]:
    """Findings of a run as its record stands, probable causes first; none below two steps or for fine-tuning."""
    if not isinstance(record, History):
        if record.kind != "grpo":
            return []
        record = History.of(record)
    if len(record) < 2:
        return []
    checks = CHECKS if len(record) >= WINDOW else EARLY_CHECKS
    return ranked([finding for check in checks if (finding := check(record)) is not None])
