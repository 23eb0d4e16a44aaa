"""Bytes of tensors: those that stay for the whole run, and those of each phase of a step.

The formulas follow the code's allocations; docs/plan.md explains them and compares them with measurements.
Letters: C hidden width, H and K width of all queries and of all keys, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import grpo.model.plan.fused as fused
from grpo.model.plan.cache import block_bytes, reserved
from grpo.model.plan.shape import Shape
from grpo.model.plan.shard import BUCKET, Shard, narrow_parameters
from grpo.model.plan.work import MicroBatch, Needs, Work

LOGITS_AT_ONCE = 2**24
"""Copy of `grpo.model.policy.LOGITS_AT_ONCE`, so that planning imports no torch; a test checks that they are equal."""
FLOAT32 = 4
CACHED_MODEL = 5_000_000
"""`grpo.rollout.cpu.linear.SMALL_MODEL`, for the same reason."""
KEPT_ON_COMPACTION = 0.8
"""Largest share of active rows when finished rows are dropped; the old and the new cache exist together then."""
KEPT_IN_EPISODES = 3
"""Columns of a row on a CPU, relative to its length, where completions are episodes: rows that come back end at the
same column, so there are up to twice as many, and those that wait for an answer are kept beside them."""


@dataclass(frozen=True)
class Precision:
    """Bytes per parameter by role, and per number computed with."""

    weights: int
    gradients: int
    optimizer: int
    """Adam's two moments."""
    values: int
    """Results of matrix products, attention included."""
    sums: int
    """The residual and its norms."""

    @property
    def mixed(self) -> bool:
        """Whether weights and inputs are cast for every matrix product, and the casts kept for the backward pass."""
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
    """Largest size of each; those of different phases do not exist together."""
    phases: Mapping[str, int]
    """Peak of each phase."""
    cache_blocks: int = 0
    """Blocks of the KV cache on a GPU."""

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
    shard: Shard = "none",
    ranks: int = 1,
    available: int = 0,
) -> Memory:
    """`lora`: rank of adapters on every linear map; 0: the whole model is trained. `stock`: transformers' blocks, even
    where `grpo.model.fused` would run. With several ranks: the memory of each, which does its share of the work.
    `available`: bytes of the device, of which the KV cache takes a share; 0: it holds all completions at once."""
    work, states = work.share(ranks), _states(shape, needs, precision, lora, shard, ranks)
    if lora:
        precision = replace(precision, gradients=FLOAT32, optimizer=2 * FLOAT32)
    reference = _frozen(shape, precision) if needs.reference and not lora else 0  # with LoRA: without its adapter
    reward = precision.weights * reward_model.parameters if reward_model else 0
    copy = _working_copy(shape, precision, on_gpu, lora, states.narrow)
    loaded = states.weights * (1 + needs.critic) + reference + reward + copy
    graphs = on_gpu and not shape.padded
    work, blocks, least = reserved(shape, work, precision.values, loaded, available, graphs=graphs)
    keys_values, sampled_logits = rollout(shape, work, precision.values, blocks * on_gpu)
    through_fused = fused.is_used(shape, precision.values, on_gpu) and not stock
    if through_fused:  # a critic has one like the policy's, a reference one of its output layer
        head = precision.values * shape.embedding * _casts_head(shape, precision)
        copy += copy * needs.critic + head * (reference > 0)
    resident = states.kept + reference + reward + on_gpu * (copy + keys_values)

    # Padded grids, without the fused blocks, are planned for full-length completions.
    batch = work.fullest_micro_batch() if through_fused else work.micro_batch()
    # Gradients exist beside activations from the second micro-batch on.
    earlier = batch.count > 1
    table = 0 if lora else precision.gradients * shape.embedding
    if through_fused:
        recomputes = gradient_checkpointing, needs.entropy
        activations, logits, scoring, update = _fused(shape, batch, precision, states.gradients, table, *recomputes)
    else:
        activations, logits, scoring, update = _stock(shape, batch, precision, states, table, lora)
    scored = needs.reference or needs.critic or work.epochs * work.minibatches > 1
    phases = {
        "rollout": max(least, resident + (not on_gpu) * (copy + keys_values) + sampled_logits),
        "score": resident + scored * scoring,
        # The critic's backward pass comes before the policy's in every micro-batch.
        "update": resident + states.critic_gradients + update,
    }
    if needs.critic:
        own = max(activations + earlier * states.critic_gradients, states.critic_gradients + earlier * table)
        phases["critic update"] = resident + earlier * states.gradients + own
    if ranks > 1:
        phases["reduce"] = resident + states.gradients + states.critic_gradients + states.bucket
    components = {
        "weights": states.weights,
        "gradients": states.gradients,
        "optimizer": states.optimizer,
        "reference": reference,
        "reward model": reward,
        "critic": states.critic + states.critic_gradients,
        "working copies": copy,
        "keys/values": keys_values,
        "activations": activations,
        "logits": max(logits, sampled_logits),
        "bucket": states.bucket,
    }
    return Memory(components, phases, blocks * on_gpu)


@dataclass(frozen=True)
class _States:
    """Bytes of weights, gradients and Adam's state, of the policy and of a critic."""

    weights: int
    gradients: int
    optimizer: int
    critic: int
    """Weights and optimizer."""
    critic_gradients: int
    bucket: int
    """Gradients are reduced through one flat bucket."""
    narrow: bool
    """Whether trainable linear layers are held in the precision of computation: no working copy, no casts."""

    @property
    def kept(self) -> int:
        return self.weights + self.optimizer + self.critic


def _states(shape: Shape, needs: Needs, precision: Precision, lora: int, shard: Shard, ranks: int) -> _States:
    trained = shape.adapter_parameters(lora) if lora else shape.parameters
    narrow = narrow_parameters(shape) if shard == "weights" and precision.mixed and not lora else 0
    if lora:
        weights = _frozen(shape, precision) + FLOAT32 * trained
        precision = replace(precision, gradients=FLOAT32, optimizer=2 * FLOAT32)
    else:
        weights = precision.weights * (trained - narrow) + precision.values * narrow
    owners = 1 if shard == "none" else ranks

    def optimizer(parameters: int) -> int:
        """Adam's two moments, and float32 masters of weights that are held in 16 bits."""
        masters = FLOAT32 * max(0, narrow - (shape.parameters - parameters))
        return -(-(precision.optimizer * parameters + masters) // owners)

    # The critic is another whole model; an untied output layer of it is not trained.
    in_critic = (trained if lora else shape.body) if needs.critic else 0
    return _States(
        weights=weights,
        gradients=precision.gradients * trained,
        optimizer=optimizer(trained),
        critic=weights + optimizer(in_critic) if needs.critic else 0,
        critic_gradients=precision.gradients * in_critic,
        # Weights of each number format have buckets of their own; one buffer serves them all.
        bucket=FLOAT32 * min(BUCKET, max(narrow, trained - narrow)) if ranks > 1 else 0,
        narrow=narrow > 0,
    )


def _working_copy(shape: Shape, precision: Precision, on_gpu: bool, lora: int, narrow: bool) -> int:
    """Bytes of the policy's working copy. A GPU keeps it, and the KV cache, from step to step. A CPU makes one per
    rollout, for float32 models that are too large for its cache."""
    if (lora or narrow) and on_gpu:
        # Weights that are held narrow are not copied, except an output layer tied to an embedding.
        head = shape.embedding * _casts_head(shape, precision)
        return precision.values * (shape.adapters_side_by_side(lora) + head) * shape.fused
    large = precision.values == FLOAT32 and shape.parameters > CACHED_MODEL
    if shape.fused if on_gpu else large:
        return precision.values * (shape.linear_parameters + shape.embedding)
    # Adapters are merged into a copy of the linear layers.
    return precision.values * shape.linear_parameters if lora and precision.values == FLOAT32 else 0


def _fused(
    shape: Shape,
    batch: MicroBatch,
    precision: Precision,
    gradients: int,
    table: int,
    gradient_checkpointing: bool,
    train_entropy: bool,
) -> tuple[int, int, int, int]:
    """(activations, logits, peak of a forward pass without gradient, of the update) through `grpo.model.fused`."""
    size, sums = precision.values, precision.sums
    activations = fused.kept(shape, batch, size, sums, gradient_checkpointing)
    # With several micro-batches, earlier gradients exist too. With one, gradients appear as activations are freed; that
    # of the output layer, `table`, comes first, while all blocks' activations exist.
    earlier, table = (gradients, 0) if batch.count > 1 else (0, table)
    logits, peak = (
        fused.widest(shape, batch, size, sums, gradient_checkpointing, train_entropy, made) for made in (0, table)
    )
    update = max(earlier + activations + peak, gradients)
    return activations, logits, fused.passing(shape, batch, size, sums), update


def _stock(
    shape: Shape, batch: MicroBatch, precision: Precision, states: _States, table: int, lora: int
) -> tuple[int, int, int, int]:
    """The same through transformers' blocks."""
    activations, forward = saved(shape, batch, precision, lora), no_gradient(shape, batch.tokens, precision, lora)
    if states.narrow:  # only a tied output layer is cast
        uncast = precision.values * narrow_parameters(shape)
        activations, forward = activations - uncast, forward - uncast
    logits = 3 * FLOAT32 * shape.vocabulary * min(batch.trained_tokens, _rows(shape))
    update = _update(shape, batch, precision, activations, logits, states.gradients, table)
    return activations, logits, forward + logits, update


def _frozen(shape: Shape, precision: Precision) -> int:
    """Bytes of a frozen model: linear layers are stored in the precision of computation."""
    narrow = shape.linear_parameters + shape.biases + (0 if shape.tied else shape.embedding)
    return precision.values * narrow + precision.weights * (shape.parameters - narrow)


def _casts_head(shape: Shape, precision: Precision) -> bool:
    return shape.tied and precision.mixed


def _update(
    shape: Shape, batch: MicroBatch, precision: Precision, activations: int, logits: int, gradients: int, table: int
) -> int:
    """Peak of the backward pass: at its start, with all activations, or at its end, with all gradients.

    `table`: gradient of the output layer, the largest single one.
    """
    # With one chunk, logits are freed before the table exists. With several, the sum so far exists beside a chunk's
    # logits, then that chunk's table and the new sum.
    in_chunks = batch.trained_tokens > _rows(shape)
    product = table * precision.values // precision.gradients
    head = max(logits + product, 3 * product) if in_chunks else max(logits, logits // 3 + product)
    if precision.mixed:
        head = max(head, product + table)
    earlier = batch.count > 1
    # A tied output layer's gradient is added to the embedding's at the end.
    last = 2 * table * shape.tied + table * earlier
    return max(activations + head + gradients * earlier, gradients + last)


def _rows(shape: Shape) -> int:
    """Tokens per chunk of the output layer."""
    return max(1, LOGITS_AT_ONCE // shape.vocabulary)


def saved(shape: Shape, batch: MicroBatch, precision: Precision, lora: int = 0) -> int:
    """Bytes that autograd keeps of one micro-batch's forward pass, without the logits."""
    size, sums = precision.values, precision.sums
    C, H, F = shape.hidden, shape.query_width, shape.intermediate
    prompts, columns = batch.prompts * batch.prompt_tokens, batch.prompt_tokens + batch.new_tokens
    # A norm's input in float32 and one scale per token; for the gradient of its weight, the normalised input.
    norm = FLOAT32 * C + FLOAT32 + (0 if lora else sums * C)
    heads = (FLOAT32 + sums) * (H + shape.kv_width) * shape.qk_norm
    adapters = size * lora * len(shape.linear_sizes)
    # A norm's output is the input of two or three linear maps; in mixed precision each keeps a cast of it.
    inputs = size * C * (5 if precision.mixed else 2)
    # Attention's output, the gate's two sides, and their product.
    per_token = 2 * norm + inputs + size * H + 4 * size * F + heads + adapters
    # Attention lays prompts and completions out as grids; a completion has its prompt's keys and values per head.
    grids = size * H * (4 * prompts + 2 * batch.trained_tokens + 2 * batch.completions * columns)
    softmax = FLOAT32 * shape.heads * batch.tokens
    mask = size * batch.trained_tokens * columns
    ends = batch.tokens * (norm + sums * C + 2 * sums * shape.head_width) + batch.trained_tokens * sums * C
    casts = size * (shape.linear_parameters + shape.embedding) if precision.mixed else 0
    if lora:
        ends -= batch.tokens * norm  # the first norm: nothing before it is trainable
        narrow = shape.adapter_parameters(lora) * (size < FLOAT32)
        casts = size * (narrow + shape.embedding * _casts_head(shape, precision))
    return shape.layers * (batch.tokens * per_token + grids + softmax + mask) + ends + casts


def no_gradient(shape: Shape, tokens: int, precision: Precision, lora: int = 0) -> int:
    """Peak bytes of a forward pass without gradient: inside one feed-forward layer."""
    casts = precision.values * (shape.linear_parameters * (not lora) + shape.embedding) if precision.mixed else 0
    return tokens * (2 * precision.sums * shape.hidden + 3 * precision.values * shape.intermediate) + casts


def rollout(shape: Shape, work: Work, size: int, blocks: int) -> tuple[int, int]:
    """(KV cache, logits) at the peak of sampling, in training or in an evaluation; `blocks`: of a GPU's cache."""
    prompt, new, rows = work.prompt_tokens, work.new_tokens, work.rows
    if blocks:
        # A spare block; noise, tokens and log-probs of all completions; one set of logits.
        completions, prompts = max(work.completions, work.heldout), max(prompts for prompts, _ in work.at_once)
        keys_values = block_bytes(shape, size) * (blocks + 1) + 3 * FLOAT32 * completions * new
        return keys_values, FLOAT32 * shape.vocabulary * (rows + 2 * prompts)
    # Every prompt once; below float32, a copy per completion too.
    copies = 1 + KEPT_ON_COMPACTION * (new > 1)
    own = new * (copies if work.observed_tokens is None else KEPT_IN_EPISODES)
    kept = own + copies * prompt * (size < FLOAT32)
    tokens = max(prompts * prompt + kept * completions for prompts, completions in work.at_once)
    # Logits, log-probs, probabilities and cumulative sums.
    return round(tokens * 2 * shape.layers * shape.kv_width * size), 4 * FLOAT32 * shape.vocabulary * rows
