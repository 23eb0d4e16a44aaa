"""What somebody should look at: what the record shows now, by `record.diagnosis`, and what the run noted on the way."""

from __future__ import annotations

from typing import Any

from grpo.record.diagnosis import Finding, diagnose, explained
from grpo.record.store import Run

COMPLETIONS = {
    "truncated": ("cut", "completions that were cut off"),
    "length_collapse": ("", "the newest completions"),
    "length_growth": ("", "the newest completions"),
    "reward_hacking": ("right", "the newest completions that earned the full reward"),
}
"""The filter that shows the evidence."""
LENSES = {
    "entropy_collapse": ("entropy", "tokens by entropy"),
    "kl": ("kl", "tokens by KL"),
    "clipped": ("clip", "tokens that were clipped"),
    "ratios": ("ratio", "tokens by ratio"),
    "sampler_gap": ("gap", "tokens by sampler gap"),
}
"""The lens that shows it, on the tokens of the finding's step."""


def findings(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Each with the view that shows its evidence, and the view's state; what was noted and still holds comes once."""
    now = diagnose(run)
    said = {finding.text for finding in now}
    return {
        "now": [finding.as_dict() | evidence(finding) for finding in now],
        "noted": [
            row | _groups(row["step"])
            for row in run.findings()
            if row["text"] not in said and not explained(row["kind"], [finding.kind for finding in now])
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
    return _groups(finding.at, finding.group)


def _groups(step: int | None, group: int | None = None) -> dict[str, Any]:
    if step is None:
        return {"view": None, "query": {}, "evidence": ""}
    if group is None:
        return {"view": "groups", "query": {"step": step}, "evidence": f"groups of step {step}"}
    return {"view": "groups", "query": {"step": step, "group": group}, "evidence": f"such a group, in step {step}"}
