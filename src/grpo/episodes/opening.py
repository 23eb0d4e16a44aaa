"""How the completions of a group begin: with one prompt, or with what their prompts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from grpo.errors import GrpoError
from grpo.model.policy import Policy
from grpo.types import Observation, Problem


@dataclass(frozen=True)
class Opening:
    problem: Problem
    """With the text that all completions begin with."""
    prompt: np.ndarray | None = None
    """int64: the tokens that the prompts share, where they differ."""
    observations: tuple[Observation | None, ...] = ()
    """The rest of each completion's prompt, where they differ."""

    @classmethod
    def of(cls, problem: Problem, begun: Sequence[Problem | None], policy: Policy) -> Opening:
        """`begun`: the problem as each completion begins it; None where it cannot begin."""
        known = [each for each in begun if each is not None] or [problem]
        if all(each == known[0] for each in known):
            return cls(known[0])
        tokens = [None if each is None else policy.prompt_tokens(each) for each in begun]
        columns = zip(*[each for each in tokens if each is not None], strict=False)
        shared = len([*takewhile(lambda column: len(set(column)) == 1, columns)])
        if not shared:
            raise GrpoError(
                f"problem {problem.label}: its environments begin with texts that share no first token; begin them "
                "alike, such as with a prompt"
            )
        rest = [None if each is None else np.array(each[shared:], dtype=np.int64) for each in tokens]
        texts = iter(policy.texts([each for each in rest if each is not None]))
        observations = [None if each is None else Observation(0, each, next(texts)) for each in rest]
        first = next(each for each in tokens if each is not None)
        return cls(problem, np.array(first[:shared], dtype=np.int64), tuple(observations))
