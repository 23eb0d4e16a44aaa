"""Compares packed rows and logits with the stock model, once after loading.

Some models compute more than `attend` does: gpt-oss adds a sink to every softmax, Doge a mask of its own, and
Qwen2-MoE's window is in transformers' mask only. `attend` would drop all three without an error, in sampling and in
training alike. Such models run padded. Others compute more than `Policy.logits` does; they are refused.

Both sides of packed rows compute in float32, also where the policy computes in 16 bits. There, rounding changes the
states of deep models by up to 7%, and far more where it selects another expert. A window dropped in one layer can
change only 3%.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from grpo.model.attention import NAME
from grpo.model.packing import pack
from grpo.model.policy import Policy, predicting_states
from grpo.types import Completion, Group, Problem

PROMPT, COMPLETION = 10, 14
"""Tokens of the compared sequences."""
WINDOW = 6
"""Sliding windows during the comparison: shorter than its sequences, so that a window that is not passed on shows."""
TOLERANCE = 1e-3
"""Largest relative difference of the hidden states. In float32, rounding changes them by about 1e-6."""
ROUNDING = 0.02
"""Largest relative difference of the logits. In bfloat16, rounding changes them by about 0.003."""
FAULTS = (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, NotImplementedError)
"""Border: what blocks of transformers that we do not know raise."""


@torch.no_grad()
def equals_stock(policy: Policy) -> bool:
    """Whether two completions packed with their prompt have the hidden states of the stock model. False, too, for
    models that our attention function cannot run."""
    policy = replace(policy, compute=None)  # without autocast
    generator, vocabulary = np.random.default_rng(0), len(policy.model.get_input_embeddings().weight)
    prompt, *sampled = (generator.integers(vocabulary, size=n) for n in (PROMPT, *[COMPLETION] * 2))
    zeros = np.zeros(COMPLETION, np.float32)
    completions = tuple(Completion("", tokens, zeros, "length") for tokens in sampled)
    [batch] = pack([Group(Problem("", "", ""), prompt, completions, 0)], PROMPT + 2 * COMPLETION, policy.device)
    batch = replace(batch, layout=replace(batch.layout, cache=_OncePerLayer()))
    try:
        with _short_windows(policy), _Float32():
            packed_AC = predicting_states(policy, batch).double()
            policy.model.set_attn_implementation("eager")
            stock_AC = torch.cat([_stock_states(policy, np.concatenate([prompt, tokens])) for tokens in sampled])
    except torch.OutOfMemoryError:
        raise
    except FAULTS:
        return False
    finally:
        policy.model.set_attn_implementation(NAME)
    return bool((packed_AC - stock_AC).norm() <= TOLERANCE * stock_AC.norm())


@torch.no_grad()
def knows_output_layer(policy: Policy) -> bool:
    """Whether `Policy.logits` gives the logits of the stock model from its last hidden states."""
    policy, model = replace(policy, compute=None), policy.model  # without autocast
    tokens_1S = torch.arange(4, device=policy.device)[None] % len(model.get_input_embeddings().weight)
    try:
        if not policy.padded:
            model.set_attn_implementation("eager")
        stock_SV = model(input_ids=tokens_1S, use_cache=False).logits[0].double()
        hidden_1SC = model.base_model(input_ids=tokens_1S, use_cache=False).last_hidden_state
        # With the weight, as in training: hidden states are cast to its format, and Mamba's are float32 in any.
        found_SV = policy.logits(hidden_1SC[0], policy.head_weight()).double()
    except torch.OutOfMemoryError:
        raise
    except FAULTS:
        return False
    finally:
        if not policy.padded:
            model.set_attn_implementation(NAME)
    return found_SV.shape == stock_SV.shape and bool((found_SV - stock_SV).norm() <= ROUNDING * stock_SV.norm())


class _OncePerLayer:
    """A `PromptStore` that refuses a layer that attends twice, as those of DiffLlama: caches of the sampler hold keys
    and values by layer."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def store(self, layer: int, k_PHQD: torch.Tensor, v_PHQD: torch.Tensor, lengths_P: torch.Tensor) -> None:
        if layer in self.seen:
            raise ValueError(f"layer {layer} attends twice")
        self.seen.add(layer)


class _Float32(TorchFunctionMode):
    """Computes every operation on 16-bit tensors in float32. Weights are widened one operation at a time, so that
    memory never holds all of them in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:  # only the rows that are read, not the whole table
            return _float32(func(*args, **(kwargs or {})))
        return func(*_float32(args), **_float32(kwargs or {}))


def _float32(tree: Any) -> Any:
    def widened(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 2 else tensor

    return tree_map_only(torch.Tensor, widened, tree)


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
    hidden_1SC = policy.model.base_model(input_ids=tokens_1S, use_cache=False).last_hidden_state
    return hidden_1SC[0, PROMPT - 1 : -1].double()
