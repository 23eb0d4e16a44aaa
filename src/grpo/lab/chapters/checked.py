"""Texts scored by the tasks' checkers: the reader's answer in a group, and examples of checkable tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grpo.config.presets import PRESETS
from grpo.core import group_advantages, reward_statistics
from grpo.errors import GrpoError
from grpo.lab.chapters.query import Query, number, text, whole
from grpo.rewards.format import json_schema
from grpo.tasks.arithmetic import Arithmetic
from grpo.tasks.checkers.answers import check, kind_of
from grpo.tasks.countdown import Countdown
from grpo.types import Problem

QUESTION, GOLD = "What is 2 + 3 × 4?", "14"
CLASSMATES = (
    "3 × 4 = 12, and 2 + 12 = 14. The answer is 14.",
    "2 + 3 = 5, times 4 makes 20.",
    "14",
    "It is about 13, I think.",
    r"\boxed{24}",
)
MOST_TEXTS, LONGEST_TEXT = 16, 400


def scored_group(query: Query) -> dict[str, Any]:
    """The lines of the group and the reader's answer: extracted answer, reason,
    reward and advantage."""
    gold = text(query, "gold", GOLD, 60).strip()
    if not gold or kind_of(gold) == "formula":
        raise GrpoError("gold: expected a number, a letter or words; formulas are checked only in runs")
    texts = [line for line in text(query, "group", "\n".join(CLASSMATES), 4000).split("\n") if line.strip()]
    own = text(query, "own", "", LONGEST_TEXT)
    texts = [*texts, own] if own.strip() else texts
    if not 1 <= len(texts) <= MOST_TEXTS or any(len(line) > LONGEST_TEXT for line in texts):
        raise GrpoError(
            f"group: expected 1 to {MOST_TEXTS} lines of at most {LONGEST_TEXT} characters; got {len(texts)} lines"
        )
    verdicts = [check(line, gold) for line in texts]
    rewards_1G = torch.tensor([[float(verdict.right) for verdict in verdicts]], dtype=torch.float64)
    advantages_1G = group_advantages(rewards_1G)
    rows = [
        {
            "text": line,
            "extracted": verdict.extracted,
            "form": verdict.form,
            "why": verdict.why,
            "strict": verdict.strict,
            "reward": float(verdict.right),
            "advantage": advantage,
            "own": bool(own.strip()) and place == len(texts) - 1,
        }
        for place, (line, verdict, advantage) in enumerate(zip(texts, verdicts, advantages_1G[0].tolist(), strict=True))
    ]
    statistics = reward_statistics(rewards_1G, advantages_1G, torch.ones_like(rewards_1G) > 0)
    return {"question": QUESTION if gold == GOLD else "", "gold": gold, "rows": rows, "statistics": statistics}


def verifiable(query: Query) -> list[dict[str, Any]]:
    """Kinds of tasks that a program can check, each with a right and a wrong answer."""
    tray = {"type": "object", "required": ["name", "age"], "properties": {"age": {"type": "integer"}}}
    shaped = json_schema(tray)
    puzzle = Problem("p", "", "44+19-35", columns={"numbers": [44, 19, 35], "target": 28})
    sums = Problem("p", "37+85+46=", "168")
    json_texts = ('{"name": "Ada", "age": 36}', '{"name": "Ada"}')
    by_check, clips = "grpo.tasks.checkers.answers:check", "How many clips in all? (72)"
    sum_rewards = _scored(Arithmetic("easy"), sums, "(18;16)168", "161")
    puzzle_rewards = _scored(Countdown(), puzzle, "<answer>44+19-35</answer>", "<answer>44-19</answer>")
    json_rewards: list[tuple[str, float | None]] = [(line, shaped(sums, line)) for line in json_texts]
    rows: list[tuple[str, str, str, list[tuple[str, float | None]]]] = [
        ("a sum", sums.prompt, "grpo.tasks.arithmetic:Arithmetic.score", sum_rewards),
        ("a word problem", clips, by_check, _checked("72", "48 + 24 = 72 clips.", "48 clips.")),
        ("a fact", "What is the capital of France?", by_check, _checked("Paris", "The answer is Paris.", "Lyon")),
        ("a choice", "(A) iron (B) neon: which is a gas?", by_check, _checked("B", "The answer is (B).", "A.")),
        ("a puzzle", "Make 28 of 44, 19 and 35.", "grpo.tasks.countdown:Countdown.score", puzzle_rewards),
        ("a format", "Name and age as JSON.", "grpo.rewards.format:json_schema", json_rewards),
    ]
    return [
        {
            "kind": kind,
            "question": question,
            "by": by,
            "answers": [{"text": line, "reward": reward} for line, reward in found],
        }
        for kind, question, by, found in rows
    ]


def _checked(gold: str, *texts: str) -> list[tuple[str, float | None]]:
    return [(line, float(check(line, gold).right)) for line in texts]


def _scored(task: Arithmetic | Countdown, problem: Problem, *texts: str) -> list[tuple[str, float | None]]:
    return [(line, task.score(problem, line)["correct"]) for line in texts]


def judged(query: Query) -> dict[str, Any]:
    """Advantages from a noisy judge.

    Groups of `g` drafts; qualities uniform over `spread`, the judge's error normal with standard deviation `noise`.
    """
    size, groups = whole(query, "g", 8, 2, 64), 2000
    spread, noise = number(query, "spread", 0.2, 0, 1), number(query, "noise", 0.1, 0, 1)
    generator = torch.Generator().manual_seed(0)
    quality_PG = spread * (torch.rand(groups, size, generator=generator, dtype=torch.float64) - 0.5)
    error_PG = noise * torch.randn(groups, size, generator=generator, dtype=torch.float64)
    advantages_PG = group_advantages(quality_PG + error_PG)
    true_PG = group_advantages(quality_PG)
    return {
        "groups": groups,
        "advantage_std": float(advantages_PG.std()),
        "zero_signal_groups": float((advantages_PG == 0).all(dim=1).double().mean()),
        "agreement": _correlation(advantages_PG, true_PG),
        "wrong_sign": _share(advantages_PG * true_PG < 0, true_PG != 0),
        "dapo": {name: getattr(PRESETS["dapo"].settings, name) for name in ("baseline", "scale", "dynamic_sampling")},
        "example": _example(quality_PG[0], error_PG[0], advantages_PG[0], true_PG[0]),
    }


def _correlation(a_PG: torch.Tensor, b_PG: torch.Tensor) -> float | None:
    return (
        float(torch.corrcoef(torch.stack([a_PG.flatten(), b_PG.flatten()]))[0, 1])
        if a_PG.any() and b_PG.any()
        else None
    )


def _share(of_PG: torch.Tensor, among_PG: torch.Tensor) -> float | None:
    return float(of_PG[among_PG].double().mean()) if among_PG.any() else None


def _example(*columns_G: torch.Tensor) -> list[dict[str, float]]:
    names: Sequence[str] = ("quality", "error", "advantage", "without_error")
    return [dict(zip(names, row, strict=True)) for row in zip(*(column.tolist() for column in columns_G), strict=True)]
