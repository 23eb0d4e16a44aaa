"""The prompts of a rollout as tokens, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grpo.errors import GrpoError
from grpo.model.policy import Policy
from grpo.model.positions import limit_in_words
from grpo.types import Problem


def prompts_of(
    policy: Policy, problems: Sequence[Problem], shared: Mapping[int, np.ndarray], max_new_tokens: int
) -> list[np.ndarray]:
    """int64 tokens of each prompt. `shared`: those of prompts whose completions begin differently, by number."""
    return [
        _checked(policy, problem, shared[p].tolist() if p in shared else policy.prompt_tokens(problem), max_new_tokens)
        for p, problem in enumerate(problems)
    ]


def refuse_unreadable(policy: Policy, problem: Problem, tokens: list[int]) -> None:
    """Raise GrpoError where a prompt has no tokens, or one that the model does not know."""
    if not tokens:
        raise GrpoError(f"problem {problem.label}: the prompt has no tokens; write a prompt")
    if policy.has_unknown(tokens):
        shown = problem.prompt[:40]
        raise GrpoError(f"problem {problem.label}: {policy.name} has no token for part of {shown!r}; use another model")


def _checked(policy: Policy, problem: Problem, tokens: list[int], max_new_tokens: int) -> np.ndarray:
    refuse_unreadable(policy, problem, tokens)
    limit = policy.positions
    if limit and len(tokens) + max_new_tokens > limit:
        raise GrpoError(
            f"problem {problem.label}: {len(tokens)} prompt tokens and max_new_tokens {max_new_tokens} exceed "
            f"{limit_in_words(policy.model.config, policy.name)}; shorten the prompt or lower max_new_tokens"
        )
    return np.array(tokens, dtype=np.int64)
