"""Bytes of an update through `model.fused`: kept activations, and the peak of the backward pass."""

from __future__ import annotations

from grpo.model.plan.shape import Shape
from grpo.model.plan.work import MicroBatch

FLOAT32 = 4
LOGITS_AT_ONCE, FEWEST_ROWS = 2**26, 1024
"""Copies of `grpo.model.fused.head`'s, so that planning imports no torch; a test checks that they are equal."""


def is_used(shape: Shape, size: int, on_gpu: bool) -> bool:
    """Whether training goes through `model.fused`: on a GPU, in 16 bits, with Llama's blocks."""
    return on_gpu and size < FLOAT32 and shape.fused


def kept(shape: Shape, batch: MicroBatch, size: int, sums: int, gradient_checkpointing: bool) -> int:
    """Bytes kept for the backward pass. `size`: bytes of a number in matrix products; `sums`: in the residual."""
    block = sums * shape.hidden + (0 if gradient_checkpointing else _inside(shape, size, sums))
    ends = (sums + size) * shape.hidden
    return batch.tokens * (shape.layers * block + ends) + batch.trained_tokens * size * shape.hidden


def _inside(shape: Shape, size: int, sums: int) -> int:
    """Bytes of a token in one block, without the block's input: queries, keys and values, attention output with its
    log-sum-exp per head, the residual after attention, two norm scales, gate and up."""
    E = shape.query_width + 2 * shape.kv_width
    heads = (size * E + FLOAT32 * (shape.heads + shape.kv_heads)) * shape.qk_norm
    mixed = size * shape.query_width + FLOAT32 * shape.heads
    return size * E + mixed + sums * shape.hidden + 2 * FLOAT32 + 2 * size * shape.intermediate + heads


def widest(
    shape: Shape, batch: MicroBatch, size: int, sums: int, gradient_checkpointing: bool, train_entropy: bool, table: int
) -> int:
    """Peak bytes in addition to `kept`: in the output layer, or in one block's backward pass. `table`: gradient of the
    output layer's weights, if its backward pass makes it; 0 if it exists before."""
    # The residual's gradient and its rounded copy, a norm's output, and silu(gate) · up with the gradients of both.
    block = (sums + 2 * size) * shape.hidden + 4 * size * shape.intermediate
    again = _inside(shape, size, sums) if gradient_checkpointing else 0
    keeps_gradient = not (gradient_checkpointing or train_entropy)
    return max(_output_layer(shape, batch, size, keeps_gradient, table), batch.tokens * (block + again) + table)


def _output_layer(shape: Shape, batch: MicroBatch, size: int, keeps_gradient: bool, table: int) -> int:
    """Peak bytes of the output layer, whose backward pass is over before that of the last block begins."""
    chunk, hidden = _chunk(shape, batch), batch.trained_tokens * shape.hidden
    if keeps_gradient:
        # With the gradient of all logits: a chunk of logits in the forward pass; in the backward pass the gradient of
        # the hidden states, in float32 and rounded, then beside it a scaled copy of these and the weights' gradient.
        passes = FLOAT32 * chunk, (FLOAT32 + size) * hidden, 2 * size * hidden + table
        return size * batch.trained_tokens * shape.vocabulary + max(passes)
    return (FLOAT32 + size) * chunk + size * hidden + table


def _chunk(shape: Shape, batch: MicroBatch) -> int:
    """Logits computed at once."""
    return min(max(FEWEST_ROWS, LOGITS_AT_ONCE // shape.vocabulary), batch.trained_tokens) * shape.vocabulary


def passing(shape: Shape, batch: MicroBatch, size: int, sums: int) -> int:
    """Peak bytes of a forward pass without gradient: at the end of a block, or in the output layer."""
    # What training would keep, the block's input and output, a norm's output, and silu(gate) · up.
    block = _inside(shape, size, sums) + (2 * sums + size) * shape.hidden + size * shape.intermediate
    logits = batch.trained_tokens * size * shape.hidden + FLOAT32 * _chunk(shape, batch)
    return max(batch.tokens * block, logits)
