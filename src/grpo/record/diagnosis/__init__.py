"""What goes wrong in a run, in plain words: each finding names the step, the number and what to try.

`diagnose` is a function of the record alone, so a resumed run finds what it found before, and anybody can ask again.
docs/diagnosis.md lists the findings with their thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo.record.diagnosis.completions import duplicates, length_collapse, one_sided, saturated_part, truncated
from grpo.record.diagnosis.policy import clipping, entropy_collapse, kl_running_away, sampler_gap, spike, wild_ratios
from grpo.record.diagnosis.progress import reward_fall, reward_flat, reward_hacking
from grpo.record.diagnosis.record import EVERY, WINDOW, Finding, Record

if TYPE_CHECKING:
    from grpo.record.store import Run

__all__ = ["EVERY", "KINDS", "Finding", "Record", "diagnose", "news"]


def diagnose(record: Record | Run) -> list[Finding]:
    """Everything that is to be said of the record as it stands; nothing where there is too little of it."""
    if not isinstance(record, Record):
        if record.kind != "grpo":
            return []
        record = Record.of(record)
    if len(record.steps) < WINDOW:
        return []
    return [finding for check in CHECKS if (finding := check(record)) is not None]


def news(run: Run, step: int) -> list[Finding]:
    """What is to be told after this step: not what was told already, unless it has changed since."""
    told = {row["kind"]: row["step"] for row in run.findings() if row["step"] is not None and row["step"] <= step}
    fresh = []
    for finding in diagnose(Record.of(run, step)):
        if finding.kind not in told:
            fresh.append(finding)
        elif told[finding.kind] < step:
            before = {each.kind: each for each in diagnose(Record.of(run, told[finding.kind]))}
            if finding.is_news_after(before.get(finding.kind)):
                fresh.append(finding)
    return fresh


CHECKS: tuple[Callable[[Record], Finding | None], ...] = (
    truncated,
    one_sided,
    entropy_collapse,
    length_collapse,
    kl_running_away,
    clipping,
    wild_ratios,
    sampler_gap,
    duplicates,
    saturated_part,
    reward_hacking,
    reward_flat,
    reward_fall,
    spike,
)
KINDS = (
    "truncated",
    "all_wrong",
    "all_right",
    "no_signal",
    "entropy_collapse",
    "length_collapse",
    "length_growth",
    "kl",
    "clipped",
    "ratios",
    "sampler_gap",
    "duplicates",
    "saturated_part",
    "reward_hacking",
    "reward_flat",
    "reward_fall",
    "spike",
)
