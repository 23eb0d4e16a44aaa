"""Rewards for the steps of a completion: maps the ends of steps in the text to tokens. The steps of an episode are its
turns."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo.config import Episodes
from grpo.errors import GrpoError
from grpo.tasks.protocol import HasReplies, HasSteps, HasTurnRewards, Task
from grpo.types import Completion, Group, Problem, changed

Decode = Callable[[list[np.ndarray]], list[str]]


def check_steps(task: Task, episodes: Episodes) -> None:
    """Raises GrpoError where nothing could reward steps, or the turns of episodes. An environment may reward them."""
    if episodes.env or isinstance(task, HasTurnRewards):
        return
    if episodes.tools or isinstance(task, HasReplies):
        raise GrpoError(
            'field loss.credit: "process" needs rewards of turns, and nothing gives them; give the task the method '
            'turn_rewards, or use "outcome"'
        )
    step_marks(task)


def step_marks(task: Task) -> Callable[[Problem, str], Sequence[tuple[int, float]]]:
    """The task's method `steps`. Raises GrpoError where it has none."""
    if not isinstance(task, HasSteps):
        raise GrpoError(
            f'field loss.credit: "process" needs a task with the method steps, or turn_rewards for episodes; task '
            f"{task.name} has neither"
        )
    return task.steps


def score_steps(task: Task, groups: Sequence[Group], decode: Decode) -> list[Group]:
    """+ (token, reward) of each step. `decode` turns rows of tokens into texts."""

    def with_steps(group: Group, completion: Completion) -> Completion:
        if completion.turns:
            return _with_every_turn(completion)
        marked = step_marks(task)(group.problem, completion.text)
        rewards = checked([reward for _, reward in marked], "step", task, group.problem)
        places = last_tokens(completion, [end for end, _ in marked], decode)
        return changed(completion, steps=tuple(zip(places, rewards, strict=True)))

    return _each(reward_turns(task, groups), with_steps)


def _with_every_turn(episode: Completion) -> Completion:
    """The turns of an episode that was scored without any reward of a turn earned 0, as those of one that was lost or
    hung: left out, losing without a word would cost nothing."""
    if episode.steps or episode.reward is None:
        return episode
    return changed(episode, steps=tuple((end - 1, 0.0) for end in episode.turn_ends))


def reward_turns(task: Task, groups: Sequence[Group]) -> list[Group]:
    """+ the rewards of the turns of episodes, where the task has them. Those of an environment came with the turns."""
    if not isinstance(task, HasTurnRewards):
        return list(groups)

    def with_rewards(group: Group, completion: Completion) -> Completion:
        if not completion.turns or completion.fault:
            return completion
        given = task.turn_rewards(group.problem, completion.turns)
        rewards = checked(given, "turn", task, group.problem)
        if len(rewards) != len(completion.turns):
            raise GrpoError(
                f"task {task.name}, problem {group.problem.label}: turn_rewards returned {len(rewards)} rewards for "
                f"{len(completion.turns)} turns; return one for each"
            )
        places = [end - 1 for end in completion.turn_ends]
        return changed(completion, steps=tuple(zip(places, rewards, strict=True)))

    return _each(groups, with_rewards)


def checked(rewards: Sequence[Any], what: str, task: Task, problem: Problem) -> list[float]:
    for reward in rewards:
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise GrpoError(
                f"task {task.name}, problem {problem.label}: {what} reward {reward!r} is not a finite number"
            )
    return [float(reward) for reward in rewards]


def _each(groups: Sequence[Group], change: Callable[[Group, Completion], Completion]) -> list[Group]:
    return [replace(group, completions=tuple(change(group, done) for done in group.completions)) for group in groups]


def last_tokens(completion: Completion, ends: Sequence[int], decode: Decode) -> list[int]:
    """The token that completes the text up to each end; the end of the text maps to the last token (the end token).

    >>> done = Completion("12,3", np.array([0, 1, 2, 9]), np.zeros(4), "stop")
    >>> pieces = {0: "12", 1: ",", 2: "3", 9: ""}
    >>> last_tokens(done, [1, 2, 3, 4], lambda rows: ["".join(pieces[token] for token in row) for row in rows])
    [0, 0, 1, 3]
    """
    lengths = [len(text) for text in decode([completion.tokens[: place + 1] for place in range(len(completion))])]
    last = len(completion) - 1
    return [last if end >= len(completion.text) else min(bisect_left(lengths, end), last) for end in ends]
