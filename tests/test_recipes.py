"""Every recipe parses, and runs for two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import grpo
from grpo.config import parse_train

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(recipe: Path, tmp_path: Path) -> None:
    small = "--steps 2 --prompts-per-step 2 --group-size 2 --evaluation.problems 4 --evaluation.probes 1"
    config = parse_train([str(recipe), *small.split(), "--system.runs", str(tmp_path)])
    with grpo.train(config) as run:
        assert run.summary()["completions"] == 2 * 2 * 2
