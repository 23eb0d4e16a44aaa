"""The questions of the chapters whose answers a static site has recorded; JavaScript computes the others.

Each is an answer of a chapter and the settings that its page can ask for: every combination of the values listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from urllib.parse import urlencode

from grpo.config.presets import PRESETS
from grpo.lab.chapters import CHAPTERS, chapter
from grpo.lab.chapters.clinic import PATIENTS

Grid = Mapping[str, Sequence[object]]

LOWS = [f"{step / 20:g}" for step in range(19)]
"""Stops of the page's slider for the lower clip range; those of the upper go to 1."""
HIGHS = [f"{step / 20:g}" for step in range(21)]

FIXED: Mapping[str, Sequence[str]] = {
    "why": ("stages", "cards", "verifiable", "classmates", "judge", "aha", "heldout", "score"),
    "group": ("sizes", "group_of_one"),
    "advantage": ("ancestors", "own"),
    "loss": (),
    "costs": (
        "accounting", "measured", "small-critics", "tree", "claims", "results", "defaults", "why-groups",
        "group-sizes", "batch", "per-token", "any-task", "no-warm-start",
    ),
    "credit": ("rewards", "strategies", "bootstrapping"),
    "train": (
        "smoothness", "drifted", "clinic", "hyperparameters", "presets", "ranges", "rules", "loss_value", "penalty",
        "mean_advantage",
    ),
    "notation": ("symbols", "story"),
}  # fmt: skip
"""Asked without settings: shown as they are, or the constants of an answer in JavaScript."""

PROBLEMS = ("37+85+46=", "58+27+94=", "66+39+71=")
"""Problems of the groups whose tokens are valued by a critic; equal to `PROBLEMS` of offline/problems.js."""
GROUPS: Grid = {"prompt": PROBLEMS, "seed": [1, 2]}
PARIS = "The answer is Paris.\nLyon\nParis\nIt is Rome, I believe."

GRIDS: Mapping[str, Sequence[tuple[str, Grid]]] = {
    "why": (("score", {"gold": ["Paris"], "group": [PARIS]}),),
    "group": (
        ("temperatures", {"g": [8]}),
        ("observed", {"g": [2, 4, 8, 16, 32, 64]}),
        ("baselines", {"step": range(80)}),
    ),
    "advantage": (("group", {"of": ["run", "six"]}), ("histogram", {"steps": range(1, 81)})),
    "loss": (
        ("histogram", {"low": LOWS, "high": ["0.2"]}),
        ("histogram", {"low": ["0.2"], "high": HIGHS}),
        ("fraction", {"advantage": [0, 1, -1]}),
        ("identity", {"advantage": ["1.5"]}),
        ("trl", {"algorithm": list(PRESETS)}),
    ),
    "costs": (
        ("preset", {"preset": list(PRESETS), "moved": ["no", "yes"]}),
        ("preset", {"preset": ["ppo"]}),
        ("open-ended", {"g": range(2, 33)}),
        ("scale", {"inside": ["nvlink"], "between": ["400gbit"], "nodes": [2]}),
        ("scale", {"inside": ["pcie"], "between": ["1gbit"], "nodes": [2]}),
    ),
    "train": (
        ("diagnosis", {"patient": [patient.trial for patient in PATIENTS]}),
        ("modes", {"dropout": [f"{step / 20:g}" for step in range(11)]}),
    ),
    "credit": (
        ("tokens", GROUPS),
        ("tokens", {**GROUPS, "sample": range(8)}),
        ("steps", GROUPS),
        ("presets", GROUPS),
    ),
    "turns": (
        ("strategies", {"guesses": range(1, 7)}),
        ("game", {"hidden": range(15), "seed": [1, 2], "sample": range(8)}),
    ),
}


def questions() -> list[str]:
    """The addresses, each once.

    >>> [url for url in questions() if "turns/strategies" in url][:2]
    ['/api/chapters/turns/strategies?guesses=1', '/api/chapters/turns/strategies?guesses=2']
    """
    found = [f"/api/chapters/{slug}/{key}" for slug, keys in FIXED.items() for key in keys]
    for slug, grids in GRIDS.items():
        for key, grid in grids:
            settings = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
            found += [f"/api/chapters/{slug}/{key}?{urlencode(each)}" for each in settings]
    sources = [f"/api/chapters/{slug}/source/{key}" for slug in CHAPTERS for key in chapter(slug).SOURCES]
    return list(dict.fromkeys(found + sources))
