"""docs/reliability.md names what exists."""

from __future__ import annotations

import re
from pathlib import Path

from grpo.config import Config
from grpo.config.parse import leaves
from grpo.kill_points import POINTS


def test_the_page_names_what_exists() -> None:
    page = Path(__file__).parents[3] / "docs" / "reliability.md"
    text = page.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / target.partition("#")[0]).is_file(), target
    known = {name.replace("_", "-") for name in leaves(Config)}
    known |= {name.rpartition(".")[2] for name in known}  # a flag may leave out its section
    named = set(re.findall(r"--([a-z][\w.-]*)", text)) - {"best", "json"}  # of `grpo export` and `grpo runs`
    assert {"resume", "checkpoints.allow-change", "checkpoints.disk-full", "system.deterministic"} <= named <= known
    assert set(re.findall(r"GRPO_KILL_AT=([\w.]+)", text)) <= set(POINTS)
    kinds = set(re.findall(r"finding `(\w+)`", text))
    assert kinds == {"replay", "damaged", "nonfinite", "changed", "assumed", "world_size"}
