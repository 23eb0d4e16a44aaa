"""The script that makes the models of tasks with several turns, as a module; and games of its teachers."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import make_episode_models as script

from grpo.model.load import load_policy
from grpo.tasks import load_task
from grpo.types import Group, Problem


def games(name: str, problems: Sequence[Problem]) -> list[Group]:
    """Games in which the teacher never answers at once."""
    student, task, policy, chance = script.STUDENTS[name], load_task(name), load_policy(name), random.Random(0)
    return [
        script.written(policy, problem, *script.play(task, student.teacher, problem, chance, 0.0))
        for problem in problems
    ]
