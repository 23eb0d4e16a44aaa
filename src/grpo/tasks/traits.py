"""Traits of the built-in tasks: properties of a completion that are recorded and not rewarded.

A task returns its traits by name (`traits`); trait X is recorded as the metric `X_share` and shown under its name.
Traits of other tasks need no entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SUFFIX = "_share"


class Trait(NamedTuple):
    definition: str
    healthy: str
    """What a sound run looks like."""


TRAITS = {
    "worked": Trait(
        "Share of completions that write out their work (task `arithmetic`).",
        "Rises if working helps: only the result is rewarded.",
    ),
    "strictly_right": Trait(
        "Share of completions with the right answer in a strict form: in a box or tag, after #### or “answer is”, or "
        "as the whole text (tasks `data`, `gsm8k`, `math`).",
        "At or below accuracy; far below means that right answers are hard to find in the text.",
    ),
    "unparsed": Trait(
        "Share of completions in which no answer could be parsed (tasks `data`, `gsm8k`, `math`, `countdown`).",
        "Falls to 0; high means that completions ignore the format, or are cut off before their answer.",
    ),
    "fenced": Trait(
        "Share of completions with a fenced code block (task `code`).",
        "Rises to 1: the prompt asks for one.",
    ),
    "called": Trait(
        "Share of episodes that call the calculator (task `calculator`).",
        "Rises if calling helps: only the result is rewarded.",
    ),
    "possible": Trait(
        "Share of guesses that the answers so far leave possible (task `guess`).",
        "Stays near 1.",
    ),
    "middle": Trait(
        "Share of guesses in the middle of the numbers that are still possible (task `guess`).",
        "Rises as the model discovers bisection.",
    ),
    "right": Trait(
        "Share of completions whose answer is exactly right, independent of the checker (task `gameable`).",
        "Rises with the reward; a fall means that the reward is gamed.",
    ),
}


def trait_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The traits among a row of metrics, by metric name.

    >>> trait_metrics({"accuracy": 0.5, "worked_share": 0.25, "rhymed_share": None})
    {'worked_share': 0.25}
    """
    return {name: value for name, value in metrics.items() if name.endswith(SUFFIX) and value is not None}


def label_of(metric: str) -> str:
    """
    >>> label_of("strictly_right_share")
    'strictly right'
    """
    return metric.removesuffix(SUFFIX).replace("_", " ")
