"""Chapter `why`: likelihood against reward, and one update from start to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from statistics import fmean
from typing import Any

from grpo.config import Config
from grpo.config.presets import PRESETS
from grpo.core import policy_loss, zero_signal_chance
from grpo.lab.chapters.budget import memory
from grpo.lab.chapters.checked import CLASSMATES, judged, scored_group, verifiable
from grpo.lab.chapters.emergence import aha, heldout
from grpo.lab.chapters.nano import LONGEST, nano, sampled, sum_of_three
from grpo.lab.chapters.query import Query, number, text, whole
from grpo.lab.chapters.update import one_update, paused_update
from grpo.model.optimizer import AdamW
from grpo.rewards import Scorer
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks.checkers.answers import check
from grpo.training.credit import credit
from grpo.training.evaluation import evaluate
from grpo.training.gradient import accumulate_gradients
from grpo.training.loop import loop
from grpo.types import Completion

SAMPLES = 512
HELDOUT = 300


def gap(query: Query) -> dict[str, Any]:
    """`nano`'s answers to a problem, most likely first: probability and correctness."""
    problem = sum_of_three(text(query, "prompt", "29+60+75="))
    return _gap(problem.prompt)


@lru_cache(maxsize=32)
def _gap(prompt: str) -> dict[str, Any]:
    problem = sum_of_three(prompt)
    [group] = sampled([problem], SAMPLES, seed=1)
    seen = Counter(done.text for done in group.completions)
    first = {done.text: done for done in reversed(group.completions)}
    rows = [_answer_row(first[text], count) for text, count in seen.items()]
    rows.sort(key=lambda row: -row["logprob"])
    by_style = {
        style: fmean(done.reward or 0.0 for done in group.completions if done.traits["worked"] == worked)
        for style, worked in (("worked", 1.0), ("direct", 0.0))
        if any(done.traits["worked"] == worked for done in group.completions)
    }
    return {
        "prompt": problem.prompt,
        "answer": problem.answer,
        "samples": SAMPLES,
        "right": fmean(done.reward or 0.0 for done in group.completions),
        "worked": fmean(done.traits["worked"] for done in group.completions),
        "right_by_style": by_style,
        "rows": rows[:12],
        "distinct": len(rows),
    }


def _answer_row(done: Completion, count: int) -> dict[str, Any]:
    return {
        "text": done.text,
        "logprob": float(done.logprobs.sum()),
        "share": count / SAMPLES,
        "reward": done.reward,
        "worked": bool(done.traits["worked"]),
    }


@lru_cache(maxsize=1)
def _fine_tuned() -> dict[str, float]:
    with nano() as loaded:
        problems = loaded.task.heldout()[:HELDOUT]
        sampling = Sampling(seed=1, temperature=1.0, max_new_tokens=LONGEST)
        row, _ = evaluate(loaded.engine, loaded.scorer, problems, sampling)
    return row


def stages(query: Query) -> dict[str, Any]:
    """The measured accuracy of `nano` after fine-tuning, the second of three stages."""
    return {"heldout": HELDOUT, "fine_tuned": _fine_tuned()}


def cards(query: Query) -> dict[str, Any]:
    """The computed numbers of the summary, as in the chapter on costs."""
    defaults = Config()
    planned = memory({})
    return {
        "group_size": defaults.group_size,
        "beta": PRESETS["grpo"].settings.beta,
        "memory": {row["algorithm"]: row["total"] for row in planned["rows"]},
        "memory_saved": planned["saved"],
    }


def scratch(query: Query) -> dict[str, Any]:
    """Expected number of groups and completions until one group has signal, at a pass rate."""
    pass_rate = 10 ** number(query, "logp", -3, -5, 0)
    size = whole(query, "g", 8, 2, 64)
    signal = 1 - zero_signal_chance(pass_rate, size)
    return {
        "pass_rate": pass_rate,
        "group_size": size,
        "signal": signal,
        "groups_until_signal": 1 / signal if signal else None,
        "completions_until_signal": size / signal if signal else None,
    }


ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "gap": gap,
    "stages": stages,
    "cards": cards,
    "update": paused_update,
    "aha": aha,
    "heldout": heldout,
    "score": scored_group,
    "verifiable": verifiable,
    "judge": judged,
    "scratch": scratch,
    "classmates": lambda query: list(CLASSMATES),
}
SOURCES: dict[str, Callable[..., Any]] = {
    "one_update": one_update,
    "loop": loop,
    "sample": Engine.sample,
    "score": Scorer.score,
    "credit": credit,
    "accumulate_gradients": accumulate_gradients,
    "policy_loss": policy_loss,
    "descend": AdamW.descend,
    "check": check,
    "aha": aha,
    "gap": _gap,
}
TRIALS: dict[str, dict[str, Any]] = {
    "first-run": {
        "arms": [{"label": "GRPO", "settings": {}}],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "worked_share", "zero_signal_groups"],
    },
    "never-shown": {
        "arms": [
            {"label": "a task in its training data", "settings": {"task": "arithmetic:easy"}},
            {"label": "a task not in its training data", "settings": {"task": "arithmetic"}},
        ],
        "seeds": 2,
        "steps": 40,
        "metrics": ["reward_mean", "zero_signal_groups"],
    },
}
