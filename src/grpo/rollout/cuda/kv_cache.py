"""Keys and values on a GPU: each prompt's once for its group, and each completion's own, at fixed addresses.

The CPU's cache is rollout/cpu/kv_cache.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from grpo.model.policy import Policy
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.kernels import KeyValues
from grpo.rollout.cuda.slots import Capacity


class KvCache:
    def __init__(self, policy: Policy, capacity: Capacity):
        config, device = policy.model.config, policy.device
        self.heads: int = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or self.heads
        width = getattr(config, "head_dim", None) or config.hidden_size // self.heads

        def layers(*shape: int) -> list[KeyValues]:
            zeros = partial(torch.zeros, *shape, dtype=policy.compute_dtype, device=device)
            return [(zeros(), zeros()) for _ in range(config.num_hidden_layers)]

        S = capacity.rows
        self.own = layers(S + 1, key_heads, capacity.new_tokens, width)
        """Per layer, by slot; finished rows share the last slot."""
        self.prompts = layers(capacity.prompts, key_heads, capacity.columns, width)
        """Per layer, by prompt."""
        parts = -(-capacity.columns // kernels.PROMPT_KEYS_PER_PROGRAM)
        floats = partial(torch.zeros, dtype=torch.float32, device=device)
        self.scratch = floats(parts, S, self.heads, width), floats(parts, S, self.heads), floats(parts, S, self.heads)
        """Intermediate results of attention."""


class PromptRange:
    """Stores prompts of one prefill into the cache, from prompt number `first` on (`attention.PromptStore`)."""

    def __init__(self, layers: Sequence[KeyValues], first: int):
        self.layers, self.first = layers, first

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        P, _, Q, _ = k_PHQD.shape
        for cached, values in zip(self.layers[layer], (k_PHQD, v_PHQD), strict=True):
            cached[self.first : self.first + P, :, :Q] = values
