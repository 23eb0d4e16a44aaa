"""Tokens per micro-batch: as asked for, or found from free memory; halved where that was not enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.model.policy import Policy

BY_DEFAULT = 16384
MOST, LEAST = 65536, 1024
"""Beyond the most, a GPU gains nothing; below the least, something else is wrong."""

Found = TypeVar("Found")


def tokens_at_once(policy: Policy, asked: int) -> int:
    return policy.token_budget or asked or BY_DEFAULT


def within_memory(
    policy: Policy, asked: int, work: Callable[[int], Found], undo: Callable[[], None] = lambda: None
) -> Found:
    """`work(tokens at once)`; when the GPU's memory runs out, undone and done again with half as many, from then on.

    Work whose result does not depend on how it is split loses nothing by it.
    """
    while True:
        tokens = tokens_at_once(policy, asked)
        try:
            return work(tokens)
        except torch.OutOfMemoryError as error:  # border: how much memory others leave is not ours to know
            if tokens <= LEAST:
                raise GrpoError(
                    f"field system.token_budget: out of memory on {policy.device} even with {tokens} tokens per "
                    "micro-batch; turn on --system.gradient_checkpointing, shorten completions, or train adapters "
                    "(see grpo plan)"
                ) from error
        # Outside the handler: the error's traceback would keep every tensor of the failed attempt.
        undo()
        torch.cuda.empty_cache()
        policy.token_budget = max(LEAST, tokens // 2)
