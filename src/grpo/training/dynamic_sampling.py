"""Dynamic sampling (DAPO, arXiv 2503.14476): groups without signal are replaced by fresh ones, up to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.config import Config
from grpo.tasks import Task
from grpo.training.credit import credit
from grpo.training.gradient import trained
from grpo.types import Group, Problem

if TYPE_CHECKING:
    from grpo.training.session import Session


def refilled(groups: Sequence[Group], session: Session, step: int) -> tuple[list[Group], dict[str, float]]:
    """Scored groups with signal, as many as a step wants; how many were drawn and kept, and all tokens.

    Round after round, as many problems are asked as groups are missing. At the limit the step goes on with the groups
    it has; where none has signal it goes on with the first ones, which then teach nothing.
    """
    config = session.config
    if not refills(config):
        return list(groups), {}
    limit = most_groups(config)
    drawn, kept, round_number = len(groups), with_signal(groups, config), 0
    tokens = count_tokens(groups)
    while (missing := config.prompts_per_step - len(kept)) and drawn < limit:
        round_number += 1
        problems = refill_problems(session.task, step, round_number, min(missing, limit - drawn), config.seed)
        fresh = session.engine.sample(problems, config.group_size, step=step, **session.sampling)
        kept += with_signal(session.score(fresh), config)
        drawn += len(problems)
        tokens += count_tokens(fresh)
    draws = {"groups_drawn": float(drawn), "groups_kept": float(len(kept)), "tokens": float(tokens)}
    return kept or list(groups), draws


def most_groups(config: Config) -> int:
    """That a step may draw."""
    return int(config.loss.dynamic_sampling * config.prompts_per_step)


def refills(config: Config) -> bool:
    return most_groups(config) > config.prompts_per_step


def count_tokens(groups: Sequence[Group]) -> int:
    return sum(len(completion) for group in groups for completion in group.completions)


def refill_problems(task: Task, step: int, round_number: int, count: int, seed: int) -> list[Problem]:
    """A function of its arguments alone, so that a resumed run draws the same. Each round is another seed to the task;
    ids say the round, because they key the sampling noise."""
    problems = task.draw(step, count, seed + round_number * 2**32)
    return [replace(problem, id=f"{problem.id}+{round_number}") for problem in problems]


def with_signal(groups: Sequence[Group], config: Config) -> list[Group]:
    """By the rewards alone: a KL divergence in the reward differs in every completion, and teaches nothing new. Nor
    does a completion that is masked."""
    by_reward = replace(config, loss=replace(config.loss, beta=0.0, entropy=0.0))
    credited, _ = credit(groups, by_reward)
    return [group for group, tested in zip(groups, credited, strict=True) if trained([tested], by_reward)]
