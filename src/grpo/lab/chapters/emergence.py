"""Emergent behaviour in the recorded run: pinned problems, and counts of marker phrases."""

from __future__ import annotations

import re
from functools import lru_cache
from statistics import fmean
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.chapters import shipped
from grpo.lab.chapters.query import Query, text
from grpo.lab.chapters.story import work_in_words
from grpo.lab.reading import probes

REFLECTION = ("wait", "actually", "let me check", "check", "hmm", "mistake", "again")
"""Words of self-correction in models trained on prose."""


def aha(query: Query) -> dict[str, Any]:
    """The pinned problems at every evaluation, and how many held-out answers contain a marker."""
    marker = text(query, "marker", "(", 40)
    if not marker:
        raise GrpoError("marker: expected at least one character; got none")
    answers = _heldout()
    return {
        "probes": _probes(),
        "marker": marker,
        "counted": [_counted(step, rows, marker) for step, rows in answers.items()],
        "reflection": {
            word: sum(word in answer.lower() for rows in answers.values() for answer, _ in rows) for word in REFLECTION
        },
        "answers": sum(map(len, answers.values())),
        "alphabet": sorted({character for rows in answers.values() for answer, _ in rows for character in answer}),
    }


def heldout(query: Query) -> dict[str, Any]:
    """Every held-out answer of the run and whether it is right, by step: what a page without a server counts in."""
    return {str(step): [list(row) for row in rows] for step, rows in _heldout().items()}


@lru_cache(maxsize=1)
def _probes() -> list[dict[str, Any]]:
    with shipped.opened() as run:
        return [probe | {"work": work_in_words(probe["prompt"])} for probe in probes(run)]


@lru_cache(maxsize=1)
def _heldout() -> dict[int, list[tuple[str, bool]]]:
    """Step -> (answer, whether it is right) of every held-out problem."""
    with shipped.opened() as run:
        return {
            row["step"]: [
                (done["text"], bool(done["correct"]))
                for group in run.eval_groups(row["step"])
                for done in group["completions"]
            ]
            for row in run.evals()
        }


def _counted(step: int, rows: list[tuple[str, bool]], marker: str) -> dict[str, Any]:
    found = re.compile(re.escape(marker), re.IGNORECASE)
    having, lacking = [[right for answer, right in rows if bool(found.search(answer)) == has] for has in (True, False)]
    return {
        "step": step,
        "answers": len(rows),
        "count": len(having),
        "share": len(having) / len(rows),
        "right": fmean(right for _, right in rows),
        "right_with": fmean(having) if having else None,
        "right_without": fmean(lacking) if lacking else None,
    }
