"""Blind spots of rewards: different texts with equal rewards, and a gameable checker next to a corrected one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo.core import group_advantages
from grpo.errors import GrpoError
from grpo.lab.chapters.query import Query, text
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.invoke import Outcome, Request, invoke
from grpo.tasks.arithmetic import Arithmetic
from grpo.tasks.checkers.answers import check
from grpo.tasks.gameable import close_and_brief, exact
from grpo.types import Problem

QUESTION, GOLD = "What is 2 + 3 × 4?", "14"
STRATEGIES = {
    "reasons": "Multiplication comes first: 3 × 4 = 12. Then 2 + 12 = 14. The answer is 14.",
    "recalls": "The answer is 14.",
    "lucky": "2 + 3 = 5 and 4 + 5 = 9, and 9 + 5 = 14. The answer is 14.",
    "wrong": "2 + 3 = 5, and 5 × 4 = 20. The answer is 20.",
}
SUM = Problem("typed", "37+85+46=", "168")
GUESSES = ("(18;16)168", "168", "161", "174", "190")
MOST_GUESSES = 12


def strategies(query: Query) -> dict[str, Any]:
    """Texts that reach the answer in different ways, and one that does not, with outcome rewards."""
    own = text(query, "own", "", 400)
    texts = {**STRATEGIES, **({"yours": own} if own.strip() else {})}
    verdicts = {name: check(line, GOLD) for name, line in texts.items()}
    rewards_1G = torch.tensor([[float(verdict.right) for verdict in verdicts.values()]], dtype=torch.float64)
    advantages = group_advantages(rewards_1G)[0].tolist()
    return {
        "question": QUESTION,
        "rows": [
            {
                "name": name,
                "text": texts[name],
                "extracted": verdict.extracted,
                "reward": float(verdict.right),
                "advantage": advantage,
            }
            for (name, verdict), advantage in zip(verdicts.items(), advantages, strict=True)
        ],
    }


def gamed(query: Query) -> dict[str, Any]:
    """A group of answers with the gameable and the corrected checker."""
    lines = [line for line in text(query, "guesses", "\n".join(GUESSES), 600).split("\n") if line.strip()]
    if not 2 <= len(lines) <= MOST_GUESSES:
        raise GrpoError(f"guesses: expected 2 to {MOST_GUESSES} lines; got {len(lines)}")
    rewards = {
        name: [check(SUM, line) for line in lines] for name, check in (("gameable", close_and_brief), ("mended", exact))
    }
    advantages = {
        name: group_advantages(torch.tensor([values], dtype=torch.float64))[0].tolist()
        for name, values in rewards.items()
    }
    task = Arithmetic("easy")
    return {
        "prompt": SUM.prompt,
        "answer": SUM.answer,
        "rows": [
            {
                "text": line,
                "extracted": task.extract(line),
                "right": bool(exact(SUM, line)),
                **{name: {"reward": rewards[name][row], "advantage": advantages[name][row]} for name in rewards},
            }
            for row, line in enumerate(lines)
        ],
        "best": {name: lines[values.index(max(values))] for name, values in rewards.items()},
    }


def near(problem: Problem, text: str) -> float | None:
    """One completion at a time: 1 for the right number, less with distance, None without a number."""
    answer = text.strip().rstrip(".").rpartition(" ")[2]
    if not answer.isdecimal():
        return None
    return max(0.0, 1 - abs(int(answer) - int(problem.answer)) / 10)


def near_as_in_trl(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
    """The same with TRL's signature: lists in, a list out."""
    return [near(Problem("", "", gold), text) for text, gold in zip(completions, answer, strict=True)]


def careless(problem: Problem, text: str) -> float:
    """Divides by the given number: raises for 0 and returns a non-finite value for others."""
    return float("nan") if "far" in text else 1 / int(text)


def reward_calls(query: Query) -> dict[str, Any]:
    """User reward functions as a run calls them, with either signature, and how each returned value is handled."""
    texts = ("The answer is 14", "12", "no idea", "0", "far away")
    functions: tuple[Callable[..., Any], ...] = (near, near_as_in_trl, careless)
    return {
        "problem": {"prompt": QUESTION, "answer": GOLD},
        "texts": texts,
        "functions": [
            {
                "name": function.__name__,
                "signature": str(inspect.signature(function)).replace("'", ""),
                "outcomes": [_told(function, line) for line in texts],
            }
            for function in functions
        ],
    }


def _told(function: Callable[..., Any], line: str) -> dict[str, Any]:
    reward = FunctionReward(Spec(__name__, function.__name__, 1.0))
    reward.load()
    [outcome] = invoke(reward, Request(Problem("typed", QUESTION, GOLD), (line,)))
    return {"value": outcome.parts.get(function.__name__), "fault": outcome.fault, "why": _last_line(outcome)}


def _last_line(outcome: Outcome) -> str:
    return outcome.why.strip().splitlines()[-1] if outcome.why else ""
