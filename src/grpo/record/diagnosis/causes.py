"""Which findings cause which others: a probable cause comes first, its consequences follow it without advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grpo.record.diagnosis.history import Finding

TOO_LARGE_UPDATES = ("kl", "entropy_collapse", "duplicates", "no_signal", "reward_flat")
EXPLAINS: dict[str, tuple[str, ...]] = {
    "unscored": ("reward_fall", "all_wrong", "no_signal", "duplicates", "reward_flat"),
    "trained_observations": ("sampler_gap", "diverged", "ratios", "clipped", *TOO_LARGE_UPDATES),
    "sampler_gap": ("ratios", "clipped", *TOO_LARGE_UPDATES),
    "reward_hacking": ("length_growth", "length_collapse"),
    "overfitting": (),
    "diverged": ("reward_flat",),
    "reward_fall": (
        *("spike", "ratios", "clipped", "kl", "entropy_collapse", "length_growth", "length_collapse", "truncated"),
        *("all_wrong", "no_signal", "duplicates", "saturated_part", "reward_flat"),
    ),
    "spike": (*TOO_LARGE_UPDATES, "ratios", "clipped"),
    "ratios": (*TOO_LARGE_UPDATES, "clipped"),
    "clipped": TOO_LARGE_UPDATES,
    "kl": ("entropy_collapse", "duplicates", "no_signal", "reward_flat"),
    "entropy_collapse": ("all_wrong", "no_signal", "duplicates", "reward_flat"),
    "length_growth": ("truncated", "reward_flat"),
    "length_collapse": ("reward_flat",),
    "truncated": ("all_wrong", "no_signal", "reward_flat"),
    "all_wrong": ("no_signal", "duplicates", "reward_flat"),
    "all_right": ("no_signal", "reward_flat"),
    "no_signal": ("duplicates", "reward_flat"),
    "duplicates": ("reward_flat",),
    "saturated_part": ("reward_flat",),
    "reward_flat": (),
    "idle_rank": (),
}
"""All kinds, the probable causes first. Each explains kinds that come after it, so every chain ends at one cause.

Advice never contradicts: "raise lr" (reward_flat) is given only where nothing that asks for a lower lr was found."""
KINDS = tuple(EXPLAINS)


def explained(kind: str, present: Sequence[str]) -> str:
    """The first of the present kinds that explains this one; empty where none does."""
    return next((cause for cause in KINDS if cause in present and kind in EXPLAINS[cause]), "")


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Probable causes in order, each followed by its consequences."""
    present = [finding.kind for finding in findings]

    def root(kind: str) -> str:
        cause = explained(kind, present)
        return root(cause) if cause else kind

    roots = {kind: root(kind) for kind in present}
    caused = [replace(each, cause="" if roots[each.kind] == each.kind else roots[each.kind]) for each in findings]
    return sorted(caused, key=lambda each: (KINDS.index(roots[each.kind]), bool(each.cause), KINDS.index(each.kind)))
