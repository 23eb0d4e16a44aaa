"""Problems for an environment that makes its own tasks."""

from __future__ import annotations

from collections.abc import Mapping

from grpo.types import Problem, chat

HELDOUT_COUNT = 500


class EnvironmentTask:
    """`env`: problems with an empty prompt, which the environment's `reset` fills. They differ in their id, which seeds
    it. The rewards are the environment's.

    >>> [problem.id for problem in EnvironmentTask().draw(3, 2, seed=1)]
    ['train/1/3/0', 'train/1/3/1']
    """

    name = "env"
    trusted = True

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return [_problem(f"train/{seed}/{step}/{i}") for i in range(count)]

    def heldout(self) -> list[Problem]:
        return [_problem(f"heldout/{i}") for i in range(HELDOUT_COUNT)]

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {}


def _problem(id: str) -> Problem:
    return Problem(id, "", "", messages=chat(""))
