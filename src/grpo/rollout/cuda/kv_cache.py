"""Keys and values on a GPU, in blocks at fixed addresses: each prompt's once for its group, and each completion's own.

A table names the blocks of each prompt and completion; `rollout/schedule.py` hands them out. The CPU's cache is
rollout/cpu/kv_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.batch import Capacity
from grpo.rollout.cuda.kernels import KeyValues
from grpo.rollout.schedule import BLOCK_TOKENS

PREFILL_PROMPTS = 256
"""Most prompts computed, or sampled from, at a time: each has a row of logits."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Blocks of completions and prompts. Block 0 is spare: what is written there is never read."""

    own_NT: torch.Tensor
    """By completion; the last row is the spare one's, all zeros."""
    prompt_PT: torch.Tensor
    """By place of the prompt in the batch."""
    prefill_PT: torch.Tensor
    """By prompt of a prefill."""


class KvCache:
    def __init__(self, policy: Policy, capacity: Capacity):
        config, device = policy.model.config, policy.device
        self.heads: int = config.num_attention_heads
        self.key_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        shape = capacity.blocks + 1, self.key_heads, BLOCK_TOKENS, width
        zeros = partial(torch.zeros, *shape, dtype=policy.compute_dtype, device=device)
        self.layers: list[KeyValues] = [(zeros(), zeros()) for _ in range(config.num_hidden_layers)]
        integers = partial(torch.zeros, dtype=torch.int32, device=device)
        own_blocks, prompt_blocks = (-(-n // BLOCK_TOKENS) for n in (capacity.new_tokens, capacity.prompt_tokens))
        self.tables = Tables(
            integers(capacity.completions + 1, own_blocks),
            integers(capacity.prompts, prompt_blocks),
            integers(min(capacity.prompts, PREFILL_PROMPTS), prompt_blocks),
        )
        self.blocks_of_a_row = own_blocks + prompt_blocks
        # Many parts have few rows: each batch size uses the same memory with a stride of its own.
        most = max(rows * (kernels.prompt_parts(self.tables) + self.splits(rows)) for rows in capacity.batch_sizes)
        floats = partial(torch.zeros, dtype=torch.float32, device=device)
        self.partial = floats(most, self.heads, width), floats(most, self.heads), floats(most, self.heads)
        """Intermediate results of attention."""

    def splits(self, rows: int) -> int:
        return kernels.splits(rows, self.key_heads, self.blocks_of_a_row)

    def write(self, table: torch.Tensor, blocks: np.ndarray) -> None:
        """Replaces the first rows of a table; the rest of each row becomes 0."""
        packed = torch.zeros(len(blocks), table.shape[1], dtype=torch.int32, pin_memory=table.is_cuda)
        packed.numpy()[:, : blocks.shape[1]] = blocks
        table[: len(blocks)].copy_(packed, non_blocking=True)


class PromptStore:
    """Stores the prompts of one prefill in the blocks of the prefill table, for stock models."""

    def __init__(self, cache: KvCache):
        self.cache = cache

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        P, _, Q, _ = k_PHQD.shape
        column_Q = torch.arange(Q, device=k_PHQD.device)
        block_PQ = self.cache.tables.prefill_PT[:P].long()[:, column_Q // BLOCK_TOKENS]
        # Padding goes to the spare block.
        block_PQ = torch.where(column_Q < lengths_P[:, None], block_PQ, 0)
        for cached, values in zip(self.cache.layers[layer], (k_PHQD, v_PHQD), strict=True):
            cached[block_PQ, :, column_Q % BLOCK_TOKENS] = values.transpose(1, 2)
