"""Chapter `turns`: episodes of several turns, with a model that guesses a hidden number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.core import group_advantages
from grpo.episodes.play import Play
from grpo.lab.chapters.guessing import chance_of_best, chance_of_possible, game, strategies
from grpo.model.packing import pack
from grpo.tasks.guess import Guess
from grpo.types import Completion

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {"game": game, "strategies": strategies}
SOURCES: dict[str, Callable[..., Any]] = {
    "reply": Guess.reply,
    "collect": Play.collect,
    "sequence": Completion.sequence.fget,  # type: ignore[attr-defined]
    "sampled": Completion.sampled.fget,  # type: ignore[attr-defined]
    "pack": pack,
    "group_advantages": group_advantages,
    "chance_of_best": chance_of_best,
    "chance_of_possible": chance_of_possible,
}
TRIALS: dict[str, dict[str, Any]] = {
    "bisection": {
        "arms": [{"label": "guess", "settings": {"task": "guess"}}],
        "seeds": 3,
        "steps": 300,
        "metrics": ["reward_mean", "middle_share", "possible_share", "turns_mean"],
    },
}
