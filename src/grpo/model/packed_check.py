"""Compares packed rows with the stock model, once after loading: some models compute more than `attend` does.

gpt-oss adds a sink to every softmax, Doge a mask of its own, and Qwen2-MoE's window is in transformers' mask only.
`attend` would drop all three without an error, in sampling and in training alike. Such models run padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from grpo.model.attention import NAME
from grpo.model.packing import pack
from grpo.model.policy import Policy, predicting_states
from grpo.types import Completion, Group, Problem

PROMPT, COMPLETION = 10, 14
"""Tokens of the compared sequences."""
WINDOW = 6
"""Sliding windows during the comparison: shorter than its sequences, so that a window that is not passed on shows."""


@torch.no_grad()
def equals_stock(policy: Policy) -> bool:
    """Whether two completions packed with their prompt have the hidden states of the stock model. False, too, for
    models that our attention function cannot run."""
    generator, vocabulary = np.random.default_rng(0), len(policy.model.get_input_embeddings().weight)
    prompt, *sampled = (generator.integers(vocabulary, size=n) for n in (PROMPT, *[COMPLETION] * 2))
    zeros = np.zeros(COMPLETION, np.float32)
    completions = tuple(Completion("", tokens, zeros, "length") for tokens in sampled)
    [batch] = pack([Group(Problem("", "", ""), prompt, completions, 0)], PROMPT + 2 * COMPLETION, policy.device)
    try:
        with _short_windows(policy):
            packed_AC = predicting_states(policy, batch).double()
            policy.model.set_attn_implementation("eager")
            stock_AC = torch.cat([_stock_states(policy, np.concatenate([prompt, tokens])) for tokens in sampled])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, NotImplementedError):
        return False  # border: blocks of transformers that we do not know
    finally:
        policy.model.set_attn_implementation(NAME)
    # 16 bits round by a few percent over all layers; other attention changes more.
    allowed = 0.1 if policy.compute_dtype.itemsize == 2 else 1e-3
    return bool((packed_AC - stock_AC).norm() <= allowed * stock_AC.norm())


@contextmanager
def _short_windows(policy: Policy) -> Iterator[None]:
    """Some models read the window from their config, others from their layers. One that no sequence exceeds stays as it
    is."""
    modules, longest = policy.model.modules(), policy.positions or float("inf")
    holders: dict[int, Any] = {id(one): one for module in modules for one in (module, getattr(module, "config", None))}
    wide = [
        (holder, name, value)
        for holder in holders.values()
        for name in ("sliding_window", "attention_chunk_size")
        if isinstance(value := getattr(holder, name, None), int) and WINDOW < value < longest
    ]
    for holder, name, _ in wide:
        setattr(holder, name, WINDOW)
    try:
        yield
    finally:
        for holder, name, value in wide:
            setattr(holder, name, value)


def _stock_states(policy: Policy, tokens: np.ndarray) -> torch.Tensor:
    """Hidden states that predict the last COMPLETION tokens."""
    tokens_1S = torch.from_numpy(tokens).to(policy.device)[None]
    with torch.autocast(policy.device.type, policy.compute, enabled=policy.compute is not None):
        hidden_1SC = policy.model.base_model(input_ids=tokens_1S, use_cache=False).last_hidden_state
    return hidden_1SC[0, PROMPT - 1 : -1].double()
