"""Measured figures that several pages quote come from docs/figures.toml."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.model.plan import GIB

ROOT = Path(__file__).parents[1]
FIGURES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "docs/figures.toml").read_text())
QUOTES = [(name, page) for name, figure in FIGURES.items() for page in figure["pages"]]


def quoted(text: str, phrase: str) -> list[str]:
    """The numbers that a text has where a phrase has its braces.

    >>> quoted("| ours | 470,000 tok/s |", "| {:,} tok/s |")
    ['470,000']
    """
    before, _, after = re.split(r"(\{.*?\})", phrase)
    return re.findall(rf"{re.escape(before)}(?<![\d.,])(\d[\d.,]*){re.escape(after)}", text)


@pytest.mark.parametrize(("name", "page"), QUOTES)
def test_the_page_has_the_figure(name: str, page: str) -> None:
    figure = FIGURES[name]
    phrase = figure["pages"][page]
    expected = phrase[phrase.index("{") : phrase.index("}") + 1].format(figure["value"])
    found = quoted((ROOT / page).read_text(), phrase)
    assert found, f"{page} has no {phrase!r}; the phrase of {name} in docs/figures.toml follows the page"
    assert expected in found if page == "benchmarks/results.md" else set(found) == {expected}, f"{page}: {found}"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_complete(name: str) -> None:
    figure = FIGURES[name]
    assert figure.keys() == {"value", "unit", "command", "hardware", "commit", "pages"}
    assert len(figure["pages"]) > 1, "a figure of one page needs no entry"
    assert "benchmarks/results.md" in figure["pages"], "the table with the circumstances"


def test_ratios_follow_from_their_figures() -> None:
    value = {name: figure["value"] for name, figure in FIGURES.items()}
    assert value["learn_ratio"] == round(value["learn_seconds_trl"] / value["learn_seconds"], 1)
    recording = Path(grpo.__file__).parent / "lab/recordings/measured_memory.json"
    rows = json.loads(recording.read_text())["rows"]
    measured = {(row["shape"], row["algorithm"]): row["measured"] / GIB for row in rows if row["dtype"] == "mixed"}
    for shape, name in (("smollm2-135m", "smollm2"), ("qwen2.5-1.5b", "qwen")):
        assert value[f"ppo_memory_{name}"] == round(measured[shape, "ppo"] / measured[shape, "grpo"], 2)
        for algorithm in ("grpo", "ppo"):
            assert value[f"memory_{name}_{algorithm}"] == round(measured[shape, algorithm], 2)
