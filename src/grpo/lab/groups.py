"""One step's groups, and one group with all that its completions earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo.core import reward_statistics
from grpo.errors import GrpoError
from grpo.lab.episodes import strip
from grpo.lab.extraction import extractor
from grpo.lab.prompts import times_sampled
from grpo.record.store import Run

KINDS = ("mixed", "all_right", "all_wrong", "cut_off", "equal", "unscored")


def kind_of(rewards: Sequence[float | None], finishes: Sequence[str], correct: Sequence[bool | None]) -> str:
    """The kind of a group, by its rewards; equal rewards have several kinds.

    >>> kind_of([1.0, 0.0], ["stop", "stop"], [True, False]), kind_of([None], ["stop"], [None])
    ('mixed', 'unscored')
    >>> kind_of([0.5, 0.5], ["stop", "stop"], [True, True]), kind_of([0.0, 0.0], ["length", "length"], [False, False])
    ('all_right', 'cut_off')
    >>> kind_of([0.0, 0.0], ["stop", "length"], [False, False]), kind_of([2.0, 2.0], ["stop", "stop"], [True, False])
    ('all_wrong', 'equal')
    """
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        return "unscored"
    if max(scored) > min(scored):
        return "mixed"
    verdicts = set(correct)
    if verdicts == {True}:
        return "all_right"
    if "stop" not in finishes:
        return "cut_off"
    return "all_wrong" if verdicts == {False} else "equal"


def step_row(run: Run, step: int) -> dict[str, Any]:
    """The step's metrics and a line for each of its groups."""
    metrics = {row["name"]: row["value"] for row in run.select("SELECT name, value FROM metrics WHERE step = ?", step)}
    if not metrics:
        last = run.last_step()
        raise GrpoError(f"step {step} is not recorded; this run has {0 if last is None else last + 1} steps")
    traced = {row["group_index"] for row in run.token_arrays(step)}
    return {
        "step": step,
        "last_step": run.last_step(),
        "metrics": metrics,
        "groups": [_line(group, group["group_index"] in traced) for group in run.groups(step)],
    }


def _line(group: Mapping[str, Any], traced: bool) -> dict[str, Any]:
    completions = group["completions"]
    rewards = [done["reward"] for done in completions]
    judged = [done["correct"] for done in completions if done["correct"] is not None]
    return {
        "index": group["group_index"],
        "problem_id": group["problem_id"],
        "prompt": group["prompt"][:300],
        "answer": group["answer"][:100],
        "kind": kind_of(rewards, [done["finish"] for done in completions], [done["correct"] for done in completions]),
        "rewards": rewards,
        "lengths": [done["length"] for done in completions],
        "advantages": [done["advantage"] for done in completions],
        "right": sum(judged) if judged else None,
        "traced": traced,
    }


def one_group(run: Run, step: int, index: int) -> tuple[dict[str, Any], int]:
    """The group as recorded, and the number of groups of its step."""
    count = int(run.select("SELECT count(*) AS count FROM groups WHERE step = ?", step)[0]["count"])
    if not 0 <= index < count:
        raise GrpoError(f"step {step} has no group {index}; it has {count}")
    [group] = run.groups(step, index)
    return group, count


def group_row(run: Run, step: int, index: int) -> dict[str, Any]:
    """The group with its completions, the best advantage first."""
    group, count = one_group(run, step, index)
    traced = {row["sample_index"]: row for row in run.token_arrays(step) if row["group_index"] == index}
    extract = extractor(run.config.get("task", ""))
    completions = [
        {
            "sample": done["sample_index"],
            **{key: done[key] for key in ("text", "length", "finish", "reward", "parts", "traits", "extra", "why")},
            **{key: done[key] for key in ("advantage", "logprob")},
            "turns": strip(done, traced.get(done["sample_index"])),
            "extracted": extract(done["text"]),
            "right": done["correct"],
        }
        for done in group["completions"]
    ]
    unscored_last = float("-inf")
    completions.sort(key=lambda done: unscored_last if done["reward"] is None else done["advantage"], reverse=True)
    return {
        **_line(group, bool(traced)),
        "step": step,
        "last_step": run.last_step(),
        "groups": count,
        "prompt": group["prompt"],
        **_as_read(run, group["problem_id"]),
        "answer": group["answer"],
        "times": times_sampled(run, group["prompt"]),
        "policy_version": group["policy_version"],
        "statistics": statistics([done["reward"] for done in completions], [done["advantage"] for done in completions]),
        "completions": completions,
    }


def _as_read(run: Run, problem_id: str) -> dict[str, Any]:
    """The place of the problem's row, and its prompt as the model read it; None in older records."""
    found = run.select("SELECT place, text, length(tokens) / 4 AS tokens FROM prompts WHERE problem_id = ?", problem_id)
    return {"place": found[0].pop("place"), "rendered": found[0]} if found else {"place": "", "rendered": None}


def statistics(rewards: Sequence[float | None], advantages: Sequence[float | None]) -> dict[str, float]:
    """Reward statistics of one group, by `grpo.core.reward_statistics`."""
    rewards_1G = torch.tensor([[float("nan") if reward is None else reward for reward in rewards]])
    advantages_1G = torch.tensor([[0.0 if advantage is None else advantage for advantage in advantages]])
    return reward_statistics(rewards_1G, advantages_1G, ~rewards_1G.isnan())
