"""What happens when GPU memory runs out: the work is undone and repeated with half the tokens per micro-batch.

The smaller budget stays for the rest of the run and is recorded with it. No step is lost, and the gradient is the same:
it does not depend on how a batch is split. At `MIN_TOKENS` tokens, or when the longest completion fills a micro-batch
alone, the run ends with an error that names the remedies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.model.policy import Policy

DEFAULT_TOKENS = 16384
MAX_TOKENS, MIN_TOKENS = 65536, 1024
"""Above `MAX_TOKENS` a GPU is no faster; below `MIN_TOKENS` something else fills the memory."""

Result = TypeVar("Result")


def tokens_at_once(policy: Policy, configured: int) -> int:
    """Tokens per micro-batch: the reduced budget, the configured one, or the default."""
    return policy.token_budget or configured or DEFAULT_TOKENS


def within_memory(
    policy: Policy,
    configured: int,
    work: Callable[[int], Result],
    undo: Callable[[], None] = lambda: None,
    *,
    longest: int = 0,
) -> Result:
    """The result of `work(tokens per micro-batch)`.

    When memory runs out, calls `undo`, halves the policy's token budget, and repeats the work. `longest`: tokens of the
    longest completion with its prompt, which no budget divides.
    """
    while True:
        tokens = tokens_at_once(policy, configured)
        try:
            return work(tokens)
        except torch.OutOfMemoryError as error:  # border: other processes use the GPU's memory too
            # Once it cannot be made smaller, the largest micro-batch is tried once more, with an empty cache.
            if tokens <= max(MIN_TOKENS, longest // 2):
                alone = f"one completion of {longest} tokens with its prompt"
                least = alone if longest >= tokens else f"{tokens} tokens"
                raise GrpoError(
                    f"field system.token_budget: out of memory on {policy.device} even with {least} per micro-batch; "
                    "turn on --system.gradient_checkpointing, shorten completions, or train with --lora.rank (see grpo "
                    "plan)"
                ) from error
        # Outside the handler: the error's traceback holds the tensors of the failed attempt.
        undo()
        torch.cuda.empty_cache()
        policy.token_budget = max(MIN_TOKENS, tokens // 2)
