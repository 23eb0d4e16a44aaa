"""Possible problems of a run: findings of `record.diagnosis` in the record, and findings reported during the run."""

from __future__ import annotations

from typing import Any

from grpo.record.diagnosis import Finding, diagnose, explained
from grpo.record.store import Run

COMPLETIONS = {
    "truncated": ("cut", "truncated completions"),
    "length_collapse": ("", "the newest completions"),
    "length_growth": ("", "the newest completions"),
    "reward_hacking": ("right", "the newest completions with the full reward"),
}
"""Filter of the Completions view that shows the evidence, and its link text."""
LENSES = {
    "entropy_collapse": ("entropy", "tokens by entropy"),
    "kl": ("kl", "tokens by KL"),
    "clipped": ("clip", "clipped tokens"),
    "ratios": ("ratio", "tokens by ratio"),
    "sampler_gap": ("gap", "tokens by sampler gap"),
    "trained_observations": ("gap", "tokens by sampler gap"),
}
"""Lens of the Tokens view that shows the evidence, and its link text."""


def findings(run: Run) -> dict[str, list[dict[str, Any]]]:
    """All findings with links to their evidence; a reported finding that still holds is listed once."""
    now = diagnose(run)
    known = {finding.text for finding in now}
    return {
        "now": [finding.as_dict() | evidence(finding) for finding in now],
        "noted": [
            row | _groups(row["step"])
            for row in run.findings()
            if row["text"] not in known and not explained(row["kind"], [finding.kind for finding in now])
        ],
    }


def evidence(finding: Finding) -> dict[str, Any]:
    if finding.kind in COMPLETIONS:
        filters, words = COMPLETIONS[finding.kind]
        return {"view": "completions", "query": {"filters": filters} if filters else {}, "evidence": words}
    if finding.kind in LENSES:
        lens, words = LENSES[finding.kind]
        return {"view": "tokens", "query": {"lens": lens, "step": finding.at}, "evidence": words}
    if finding.kind == "no_signal":
        return {"view": "signal", "query": {}, "evidence": "the signal budget"}
    if finding.kind == "overfitting":
        return {"view": "difficulty", "query": {}, "evidence": "held-out problems at each evaluation"}
    if finding.kind == "idle_rank":
        return {"view": "time", "query": {"step": finding.at}, "evidence": "idle time of each rank"}
    return _groups(finding.at, finding.group)


def _groups(step: int | None, group: int | None = None) -> dict[str, Any]:
    if step is None:
        return {"view": None, "query": {}, "evidence": ""}
    if group is None:
        return {"view": "groups", "query": {"step": step}, "evidence": f"groups of step {step}"}
    return {"view": "groups", "query": {"step": step, "group": group}, "evidence": f"an example group of step {step}"}
