"""Floating-point operations of one step: two per weight and token of its matrix products."""

from __future__ import annotations

from grpo.model.plan.memory import LOGITS_AT_ONCE
from grpo.model.plan.shape import Shape
from grpo.model.plan.work import Needs, Work

BACKWARD = 2
"""Backward pass relative to the forward: a product for the gradient of the inputs and one for the weights."""
ATTENTION_BACKWARD = 2.5
"""Five matrix products against two: the scores are recomputed."""


def flops(
    shape: Shape, work: Work, needs: Needs, *, lora: int = 0, reward_model: Shape | None = None
) -> dict[str, float]:
    """Operations by phase, without held-out evaluations."""
    tokens, contributing = work.packed_tokens, work.completions * work.new_tokens
    forward, attention, head = _body(shape, tokens), _attention(shape, work), contributing * _head(shape)
    adapters = 2.0 * shape.adapter_parameters(lora) * tokens
    # With LoRA the frozen weights get no gradient; the gradient of their inputs remains.
    backward = BACKWARD - (1 if lora else 0)
    chunked = work.micro_batch().trained_tokens * shape.vocabulary > LOGITS_AT_ONCE
    update = (1 + backward) * forward + (1 + ATTENTION_BACKWARD) * attention + (1 + backward + chunked) * head
    update += (1 + BACKWARD) * adapters
    scored = forward + attention + head
    phases = {
        # A completion's last token is not an input; the logits after a prompt are computed once per group.
        "rollout": _body(shape, tokens - work.completions)
        + attention
        + (contributing - work.completions + work.prompts) * _head(shape)
        + adapters,
        "old policy": scored + adapters if work.epochs * work.minibatches > 1 else 0.0,
        "reference": scored if needs.reference else 0.0,
        "critic": forward + attention if needs.critic else 0.0,
        "reward model": 0.0,
        "update": work.epochs * update,
    }
    if reward_model:
        # It computes prompt and completion of every text.
        texts = work.completions * (work.prompt_tokens + work.new_tokens)
        phases["reward model"] = _body(reward_model, texts)
    if needs.critic:
        phases["update"] += work.epochs * ((1 + backward) * forward + (1 + ATTENTION_BACKWARD) * attention)
    return phases


def model_flops(shape: Shape, work: Work) -> float:
    """Forward and backward of one pass over a batch, without recomputation."""
    return (1 + BACKWARD) * (
        _body(shape, work.packed_tokens) + _attention(shape, work) + work.completions * work.new_tokens * _head(shape)
    )


def _body(shape: Shape, tokens: int) -> float:
    return 2.0 * shape.linear_parameters * tokens


def _head(shape: Shape) -> float:
    return 2.0 * shape.embedding


def _attention(shape: Shape, work: Work) -> float:
    """Scores and weighted sums of every pair of a query and a key."""
    prompt, new = work.prompt_tokens, work.new_tokens
    in_prompts = work.prompts * prompt * (prompt + 1) / 2
    in_completions = work.completions * (new * prompt + new * (new + 1) / 2)
    return 4.0 * shape.layers * shape.query_width * (in_prompts + in_completions)
