"""Follows the record of a run while it trains and reports each finding once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.record.diagnosis import diagnose
from grpo.record.diagnosis.causes import KINDS
from grpo.record.diagnosis.history import Finding, History

if TYPE_CHECKING:
    from grpo.record.store import Run

EVERY = 10
"""Steps between two diagnoses."""
LONGER = 1.5
"""Length of the run, relative to that at the last report, from which a finding may be reported again: in a noisy run
its number and its cause may go to and fro at every diagnosis."""


class Monitor:
    """Reads each recorded step once. Findings are a function of the record, so a resumed run neither loses nor repeats
    any."""

    def __init__(self, run: Run):
        self.run = run
        self.history = History(config=run.config)
        self.reported: dict[str, dict[int, Finding | None]] = {kind: {} for kind in KINDS}
        """By kind and step; None: reported before the run was resumed, and not derived from the record."""
        self.to_derive: set[tuple[str, int]] = set()
        """Kinds and steps reported before the run was resumed, each derived once, when it is compared with."""
        for row in run.findings():
            if row["kind"] in KINDS and row["step"] is not None:
                self.reported[row["kind"]][row["step"]] = None
                self.to_derive.add((row["kind"], row["step"]))

    def new_findings(self, step: int) -> list[Finding]:
        """Findings after this step that were not reported before, or long ago and have changed since. They count as
        reported."""
        self.history.extend(self.run, step)
        fresh = [finding for finding in diagnose(self.history) if self._is_new(finding, step)]
        for finding in fresh:
            self.reported[finding.kind][step] = finding
        return fresh

    def _is_new(self, finding: Finding, step: int) -> bool:
        reported = self.reported[finding.kind]
        earlier = max((known for known in reported if known <= step), default=None)
        if earlier is None:
            return True
        if step + 1 < LONGER * (earlier + 1):
            return False
        if (finding.kind, earlier) in self.to_derive:
            self.to_derive.remove((finding.kind, earlier))
            reported[earlier] = self._as_of(earlier, finding.kind)
        return finding.is_new_after(reported[earlier])

    def _as_of(self, step: int, kind: str) -> Finding | None:
        found = diagnose(History.of(self.run, step))
        return next((finding for finding in found if finding.kind == kind), None)
