"""Dynamic sampling (DAPO, arXiv 2503.14476): groups without signal are replaced by fresh ones, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.config import Config
from grpo.training.credit import credit
from grpo.training.gradient import contributing
from grpo.types import Group, Problem

if TYPE_CHECKING:
    from grpo.training.session import Session

Draw = Callable[[int, int, int], list[Problem]]
"""`draw` of a task: problems by step, count and seed."""


def replace_without_signal(
    groups: Sequence[Group], session: Session, step: int
) -> tuple[list[Group], dict[str, float]]:
    """This rank's part of `prompts_per_step` scored groups with signal, and the metrics groups_drawn, groups_kept and
    tokens. `groups`: those that this rank has sampled.

    Each round samples as many problems as groups are missing. At the limit the step continues with the groups it has.
    If none has signal it continues with the first ones, which have no gradient.
    """
    config, world = session.config, session.world
    if not replaces_groups(config):
        return list(groups), {}
    groups, limit = world.gather(groups), max_groups(config)
    drawn, kept, round_number = len(groups), with_signal(groups, config), 0
    tokens = count_tokens(groups)
    while (missing := config.prompts_per_step - len(kept)) and drawn < limit:
        round_number += 1
        problems = fresh_problems(session.draw, step, round_number, min(missing, limit - drawn), config.seed)
        sampled = session.engine.sample(world.mine(problems), config.group_size, session.sampling(step))
        fresh = world.gather(session.score(sampled, step))
        kept += with_signal(fresh, config)
        drawn += len(problems)
        tokens += count_tokens(fresh)
    draws = {"groups_drawn": float(drawn), "groups_kept": float(len(kept)), "tokens": float(tokens)}
    return world.mine(kept or groups), draws


def max_groups(config: Config) -> int:
    """Most groups that one step may sample."""
    return int(config.loss.dynamic_sampling * config.prompts_per_step)


def replaces_groups(config: Config) -> bool:
    """Whether dynamic sampling is on."""
    return max_groups(config) > config.prompts_per_step


def count_tokens(groups: Sequence[Group]) -> int:
    return sum(len(completion) for group in groups for completion in group.completions)


def fresh_problems(draw: Draw, step: int, round_number: int, count: int, seed: int) -> list[Problem]:
    """The problems of one round: a function of the arguments, so that a resumed run draws the same. Each round gives
    the task another seed; the ids end in the round, because ids key the sampling noise."""
    problems = draw(step, count, seed + round_number * 2**32)
    return [replace(problem, id=f"{problem.id}+{round_number}") for problem in problems]


def with_signal(groups: Sequence[Group], config: Config) -> list[Group]:
    """The groups whose rewards give a gradient. KL and entropy terms do not count: they differ in every completion. Nor
    do masked completions."""
    by_reward = replace(config, loss=replace(config.loss, beta=0.0, entropy=0.0))
    credited, _ = credit(groups, by_reward)
    return [group for group, tested in zip(groups, credited, strict=True) if contributing([tested], by_reward)]
