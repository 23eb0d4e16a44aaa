"""Bytes of tensors: what is there all the time, and what comes and goes in each phase of a step.

The formulas follow what the code allocates; docs/plan.md explains them and holds them against measurement.
Letters: C hidden width, H and K width of all queries and of all keys, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import grpo.model.plan.fused as fused
from grpo.model.plan.shape import Shape
from grpo.model.plan.work import MicroBatch, Needs, Work

LOGITS_AT_ONCE = 2**24
"""`grpo.model.policy.LOGITS_AT_ONCE`, repeated so that planning imports no torch; a test holds the two equal."""
FLOAT32 = 4
CACHED_MODEL = 5_000_000
"""`grpo.rollout.cpu.linear.SMALL_MODEL`, for the same reason."""
KEPT_ON_COMPACTION = 0.8
"""Largest share of rows that go on when finished ones are dropped: old and new keys and values exist together then."""


@dataclass(frozen=True)
class Precision:
    """Bytes per parameter by role, and per number computed with."""

    weights: int
    gradients: int
    optimizer: int
    """Adam's two moments."""
    values: int
    """Products: of weights and inputs, and of attention."""
    sums: int
    """What is added up from layer to layer, and its norms."""

    @property
    def mixed(self) -> bool:
        """Weights and inputs are cast for every product, and the casts are kept for the backward pass."""
        return self.sums > self.values


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(weights=4, gradients=4, optimizer=8, values=4, sums=4),
    "mixed": Precision(weights=4, gradients=4, optimizer=8, values=2, sums=4),
    "half": Precision(weights=4, gradients=4, optimizer=8, values=2, sums=4),
    "bfloat16": Precision(weights=2, gradients=2, optimizer=4, values=2, sums=2),
}
"""By `system.dtype`."""


@dataclass(frozen=True)
class Memory:
    components: Mapping[str, int]
    """Each at its largest; those of different phases do not meet."""
    phases: Mapping[str, int]
    """All that exists at the worst moment of each phase."""

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def memory_of(
    shape: Shape,
    work: Work,
    needs: Needs,
    precision: Precision,
    *,
    on_gpu: bool = False,
    lora: int = 0,
    gradient_checkpointing: bool = False,
    stock: bool = False,
    reward_model: Shape | None = None,
) -> Memory:
    """`lora`: rank of adapters on every linear map, which then are all that is trained; 0: the whole model is.
    `stock`: as transformers computes its blocks, even where `grpo.model.fused` could."""
    trained = shape.adapter_parameters(lora) if lora else shape.parameters
    if lora:
        weights = _frozen(shape, precision) + FLOAT32 * trained
        precision = replace(precision, gradients=FLOAT32, optimizer=2 * FLOAT32)
    else:
        weights = precision.weights * trained
    gradients, optimizer = precision.gradients * trained, precision.optimizer * trained
    # With adapters, the reference is the model without them.
    reference = _frozen(shape, precision) if needs.reference and not lora else 0
    reward = precision.weights * reward_model.parameters if reward_model else 0
    # The critic is a whole model besides, of which the output layer, where it has one of its own, is not trained.
    critic_gradients = precision.gradients * (trained if lora else shape.body) if needs.critic else 0
    critic = weights + precision.optimizer * critic_gradients // precision.gradients if needs.critic else 0
    keys_values, sampled_logits = rollout(shape, work, precision.values, on_gpu)
    copy = _working_copy(shape, precision, on_gpu, lora)
    through_fused = on_gpu and precision.values < FLOAT32 and shape.fused and not stock
    if through_fused:  # a critic computes with one like the policy's, a reference with its own output layer
        head = precision.values * shape.embedding * _casts_head(shape, precision)
        copy += copy * needs.critic + head * (reference > 0)
    resident = weights + optimizer + reference + reward + critic + on_gpu * (copy + keys_values)

    batch = work.micro_batch()
    # Gradients of the micro-batches before: beside the first one's activations there are none yet.
    earlier = batch.count > 1
    table = 0 if lora else precision.gradients * shape.embedding
    if through_fused:
        activations, logits, forward, update = _fused(shape, batch, precision, gradients, gradient_checkpointing)
    else:
        activations, logits, forward, update = _stock(shape, batch, precision, gradients, table, lora)
    scored = needs.reference or needs.critic or work.epochs * work.minibatches > 1
    phases = {
        "rollout": resident + (not on_gpu) * (copy + keys_values) + sampled_logits,
        "score": resident + scored * (forward + logits),
        # The critic's gradients are there first: its turn comes before the policy's in every micro-batch.
        "update": resident + critic_gradients + update,
    }
    if needs.critic:
        own = max(activations + earlier * critic_gradients, critic_gradients + earlier * table)
        phases["critic update"] = resident + earlier * gradients + own
    components = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "reference": reference,
        "reward model": reward,
        "critic": critic + critic_gradients,
        "working copies": copy,
        "keys/values": keys_values,
        "activations": activations,
        "logits": max(logits, sampled_logits),
    }
    return Memory(components, phases)


def _working_copy(shape: Shape, precision: Precision, on_gpu: bool, lora: int) -> int:
    """Of the policy's weights. A GPU keeps it, as it keeps the room for keys and values, from step to step; a CPU makes
    one for each rollout of float32 models too large for its cache."""
    if lora and on_gpu:
        # Frozen weights are read where they are, but for an output layer that is the embedding, and kept wider.
        head = shape.embedding * _casts_head(shape, precision)
        return precision.values * (shape.adapters_side_by_side(lora) + head) * shape.fused
    large = precision.values == FLOAT32 and shape.parameters > CACHED_MODEL
    if shape.fused if on_gpu else large:
        return precision.values * (shape.linear_parameters + shape.embedding)
    # What adapters add is folded into a copy of the linear layers.
    return precision.values * shape.linear_parameters if lora and precision.values == FLOAT32 else 0


def _fused(
    shape: Shape, batch: MicroBatch, precision: Precision, gradients: int, gradient_checkpointing: bool
) -> tuple[int, int, int, int]:
    """(activations, logits, a forward pass alone, the update's worst moment) through `grpo.model.fused`."""
    size, sums = precision.values, precision.sums
    activations = fused.kept(shape, batch, size, sums, gradient_checkpointing)
    logits = fused.widest(shape, batch, size, sums, gradient_checkpointing)
    # One micro-batch's gradients come as its activations go; several have those of the ones before.
    update = max(activations + logits + gradients * (batch.count > 1), gradients)
    return activations, logits, fused.passing(shape, batch, size, sums), update


def _stock(
    shape: Shape, batch: MicroBatch, precision: Precision, gradients: int, table: int, lora: int
) -> tuple[int, int, int, int]:
    """The same through transformers' own blocks."""
    activations = saved(shape, batch, precision, lora)
    logits = 3 * FLOAT32 * shape.vocabulary * min(batch.trained_tokens, _rows(shape))
    update = _update(shape, batch, precision, activations, logits, gradients, table)
    return activations, logits, no_gradient(shape, batch.tokens, precision, lora), update


def _frozen(shape: Shape, precision: Precision) -> int:
    """Under adapters, linear layers are kept in the precision of products."""
    narrow = shape.linear_parameters + shape.biases + (0 if shape.tied else shape.embedding)
    return precision.values * narrow + precision.weights * (shape.parameters - narrow)


def _casts_head(shape: Shape, precision: Precision) -> bool:
    return shape.tied and precision.mixed


def _update(
    shape: Shape, batch: MicroBatch, precision: Precision, activations: int, logits: int, gradients: int, table: int
) -> int:
    """The worse of two moments of the backward pass: its beginning, with all activations, and its end, with all
    gradients. `table` is the gradient of the output layer, the largest single one."""
    # In one chunk, the logits come before the table; in several, there is the sum so far beside a chunk's logits, then
    # that chunk's own table and the new sum.
    in_chunks = batch.trained_tokens > _rows(shape)
    product = table * precision.values // precision.gradients
    head = max(logits + product, 3 * product) if in_chunks else max(logits, logits // 3 + product)
    if precision.mixed:
        head = max(head, product + table)
    earlier = batch.count > 1
    # Where the output layer is the embedding, its gradient is added to the embedding's at the very end.
    last = 2 * table * shape.tied + table * earlier
    return max(activations + head + gradients * earlier, gradients + last)


def _rows(shape: Shape) -> int:
    """Hidden states that meet the output layer at a time."""
    return max(1, LOGITS_AT_ONCE // shape.vocabulary)


def saved(shape: Shape, batch: MicroBatch, precision: Precision, lora: int = 0) -> int:
    """What autograd keeps of one micro-batch's forward pass, but for the logits."""
    size, sums = precision.values, precision.sums
    C, H, F = shape.hidden, shape.query_width, shape.intermediate
    prompts, columns = batch.prompts * batch.prompt_tokens, batch.prompt_tokens + batch.new_tokens
    # Its input in float32, one scale per token; for the gradient of its own weight, the input scaled.
    norm = FLOAT32 * C + FLOAT32 + (0 if lora else sums * C)
    heads = (FLOAT32 + sums) * (H + shape.kv_width) * shape.qk_norm
    adapters = size * lora * len(shape.linear_sizes)
    # A norm's output is the input of two or three linear maps; cast, each has one of its own.
    inputs = size * C * (5 if precision.mixed else 2)
    # Attention's output, the gate's two sides, and their product.
    per_token = 2 * norm + inputs + size * H + 4 * size * F + heads + adapters
    # Attention lays prompts and completions out as grids; a completion has its prompt's keys and values, per head.
    grids = size * H * (4 * prompts + 2 * batch.trained_tokens + 2 * batch.completions * columns)
    softmax = FLOAT32 * shape.heads * batch.tokens
    mask = size * batch.trained_tokens * columns
    ends = batch.tokens * (norm + sums * C + 2 * sums * shape.head_width) + batch.trained_tokens * sums * C
    casts = size * (shape.linear_parameters + shape.embedding) if precision.mixed else 0
    if lora:
        ends -= batch.tokens * norm  # the first norm: nothing before it learns
        narrow = shape.adapter_parameters(lora) * (size < FLOAT32)
        casts = size * (narrow + shape.embedding * _casts_head(shape, precision))
    return shape.layers * (batch.tokens * per_token + grids + softmax + mask) + ends + casts


def no_gradient(shape: Shape, tokens: int, precision: Precision, lora: int = 0) -> int:
    """The widest moment of a forward pass that keeps nothing: inside one feed-forward block."""
    casts = precision.values * (shape.linear_parameters * (not lora) + shape.embedding) if precision.mixed else 0
    return tokens * (2 * precision.sums * shape.hidden + 3 * precision.values * shape.intermediate) + casts


def rollout(shape: Shape, work: Work, size: int, on_gpu: bool) -> tuple[int, int]:
    """(keys and values, logits) at the worst moment of sampling, in training or in an evaluation."""
    asked = [(work.prompts, work.completions)] + ([(work.heldout, work.heldout)] if work.heldout else [])
    prompt, new = work.prompt_tokens, work.new_tokens
    prompts, rows = (max(counts) for counts in zip(*asked, strict=True))
    per_token = 2 * shape.layers * shape.kv_width * size
    if on_gpu:
        # Every prompt once, in room for multiples of 64; the noise, tokens and log-probabilities; one set of logits.
        keys_values = per_token * (prompts * -(-prompt // 64) * 64 + rows * new) + 3 * FLOAT32 * rows * new
        return keys_values, FLOAT32 * shape.vocabulary * (rows + 2 * prompts)
    # Every prompt once; below float32, again for each of its completions.
    kept = (1 + KEPT_ON_COMPACTION * (new > 1)) * (new + prompt * (size < FLOAT32))
    tokens = max(each * prompt + kept * completions for each, completions in asked)
    # Logits, their logarithms, probabilities and cumulative sums.
    return round(tokens * per_token), 4 * FLOAT32 * shape.vocabulary * rows
