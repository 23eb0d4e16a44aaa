"""Floating-point operations of one step: two per weight and token of its matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from grpo.model.plan.shape import Shape
from grpo.model.plan.work import Needs, Work

BACKWARD = 2
"""Backward pass relative to the forward: a product for the gradient of the inputs and one for the weights."""
ATTENTION_BACKWARD = 2.5
"""Five matrix products against two: the scores are recomputed."""


@dataclass(frozen=True)
class PackedSize:
    """Size of packed groups, on which the operations of a forward pass depend.

    >>> PackedSize.of([(3, [2, 2])])
    PackedSize(tokens=7, completion_tokens=4, pairs=24)
    """

    tokens: int
    """Each prompt once, each completion once."""
    completion_tokens: int
    """Those that were sampled, which have logits."""
    pairs: int
    """Pairs of a query and a key that it attends to, in its own row or in its prompt."""

    @classmethod
    def of(cls, groups: Iterable[tuple[int, Sequence[int]]]) -> Self:
        """`groups`: tokens of each prompt, and of each of its completions."""
        tokens = completion_tokens = pairs = 0
        for prompt, lengths in groups:
            completion_tokens += sum(lengths)
            tokens += prompt + sum(lengths)
            pairs += prompt * (prompt + 1) // 2 + sum(new * prompt + new * (new + 1) // 2 for new in lengths)
        return cls(tokens, completion_tokens, pairs)


def flops(
    shape: Shape, work: Work, needs: Needs, *, lora: int = 0, reward_model: Shape | None = None
) -> dict[str, float]:
    """Operations by phase, without held-out evaluations."""
    whole = PackedSize.of([(work.prompt_tokens, [work.new_tokens] * work.group_size)] * work.prompts)
    size = replace(whole, completion_tokens=work.completions * work.sampled_tokens)
    forward, attention = _body(shape, size.tokens), _attention(shape, size)
    adapters = _adapters(shape, size.tokens, lora)
    scored = forward_flops(shape, size)
    phases = {
        # A completion's last token is not an input; the logits after a prompt are computed once per group. What an
        # episode reads is decoded like what it samples.
        "rollout": _body(shape, size.tokens - work.completions)
        + attention
        + (whole.completion_tokens - work.completions + work.prompts) * _head(shape)
        + adapters,
        "old policy": scored + adapters if work.epochs * work.minibatches > 1 else 0.0,
        "reference": scored if needs.reference else 0.0,
        "critic": forward + attention if needs.critic else 0.0,
        "reward model": 0.0,
        "update": work.epochs * update_flops(shape, size, lora=lora),
    }
    if reward_model:
        # It computes prompt and completion of every text.
        texts = work.completions * (work.prompt_tokens + work.new_tokens)
        phases["reward model"] = _body(reward_model, texts)
    if needs.critic:
        backward = _backward(lora)
        phases["update"] += work.epochs * ((1 + backward) * forward + (1 + ATTENTION_BACKWARD) * attention)
    return phases


def update_flops(shape: Shape, size: PackedSize, *, lora: int = 0) -> float:
    """Forward and backward of one pass over packed groups, with the scores that attention recomputes; no other
    recomputation counts."""
    linear = _body(shape, size.tokens) + size.completion_tokens * _head(shape)
    attention, adapters = _attention(shape, size), _adapters(shape, size.tokens, lora)
    return (1 + _backward(lora)) * linear + (1 + ATTENTION_BACKWARD) * attention + (1 + BACKWARD) * adapters


def model_flops(shape: Shape, size: PackedSize, *, lora: int = 0) -> float:
    """The same without recomputation: what MFU counts."""
    linear = _body(shape, size.tokens) + size.completion_tokens * _head(shape)
    other = _attention(shape, size) + _adapters(shape, size.tokens, lora)
    return (1 + _backward(lora)) * linear + (1 + BACKWARD) * other


def forward_flops(shape: Shape, size: PackedSize) -> float:
    """One forward pass without adapters."""
    return _body(shape, size.tokens) + _attention(shape, size) + size.completion_tokens * _head(shape)


def _backward(lora: int) -> int:
    """Backward pass relative to the forward. With LoRA, frozen weights get no gradient, only their inputs do."""
    return BACKWARD - (1 if lora else 0)


def _adapters(shape: Shape, tokens: int, rank: int) -> float:
    return 2.0 * shape.adapter_parameters(rank) * tokens


def _body(shape: Shape, tokens: int) -> float:
    return 2.0 * shape.linear_parameters * tokens


def _head(shape: Shape) -> float:
    return 2.0 * shape.embedding


def _attention(shape: Shape, size: PackedSize) -> float:
    """Scores and weighted sums of every pair of a query and a key."""
    return 4.0 * shape.layers * shape.query_width * size.pairs
