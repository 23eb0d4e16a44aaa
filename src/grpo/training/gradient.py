"""The gradient of one optimizer step: its contributing completions, and their loss, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from statistics import fmean as mean

import numpy as np
import torch

from grpo.config import Config
from grpo.config.presets import load_surrogate
from grpo.config.sections import Loss
from grpo.core import LossStatistics, denominator, policy_loss
from grpo.core.statistics import SIGNAL_SHARES
from grpo.distributed.world import ALONE, World
from grpo.model.critic import Critic
from grpo.model.oom_retry import within_memory
from grpo.model.packing import longest_row, pack
from grpo.model.policy import Policy, logprobs, predicting_states
from grpo.record.trace import Traces
from grpo.training.credit import loss_beta
from grpo.types import Batch, Completion, Group


def minibatches(groups: Sequence[Group], config: Config, step: int) -> Iterator[list[Group]]:
    """The groups of each optimizer step, without unscored completions, in an order keyed by (seed, step, epoch)."""
    scored = [replace(g, completions=tuple(c for c in g.completions if c.reward is not None)) for g in groups]
    scored = [group for group in scored if group.completions]
    for epoch in range(config.optimizer.epochs):
        order = np.arange(len(scored))
        if config.optimizer.minibatches > 1:
            order = np.random.default_rng([config.seed, step, epoch]).permutation(order)
        for part in np.array_split(order, config.optimizer.minibatches):
            if len(part):
                yield [scored[i] for i in part]


def contributing(groups: Sequence[Group], config: Config, critic: Critic | None = None) -> list[Group]:
    """Groups with only the completions that have a gradient. The others are not computed; the denominator counts them.

    A completion without signal has a gradient if the loss has a KL or entropy term, or if there is a critic.
    """
    loss = config.loss
    needs_no_signal = bool(loss_beta(loss) or loss.entropy or critic)

    def contributes(completion: Completion) -> bool:
        if is_masked(completion, loss):
            return False
        return needs_no_signal or (completion.advantages is not None and bool(completion.advantages.any()))

    kept = [replace(group, completions=tuple(filter(contributes, group.completions))) for group in groups]
    return [group for group in kept if group.completions]


def is_masked(completion: Completion, loss: Loss) -> bool:
    """Whether `loss.mask_truncated` leaves the completion out of the loss."""
    return loss.mask_truncated and completion.truncated


def gradient_token_share(groups: Sequence[Group], loss: Loss) -> float:
    """Share of the scored tokens that have a non-zero advantage and are not masked; 0 without scored tokens."""
    scored = [done for group in groups for done in group.completions if done.reward is not None]
    tokens = sum(map(len, scored))
    with_signal = sum(
        int(np.count_nonzero(done.advantages))
        for done in scored
        if done.advantages is not None and not is_masked(done, loss)
    )
    return with_signal / tokens if tokens else 0.0


@dataclass(frozen=True)
class Gradient:
    """Measurements of the gradient that `accumulate_gradients` left in the weights."""

    statistics: LossStatistics
    gap: float
    """Mean |sampler logp − trainer logp|."""
    value_loss: float | None

    def metrics(self) -> dict[str, float]:
        critic = {} if self.value_loss is None else {"value_loss": self.value_loss}
        return self.statistics.metrics() | critic


def over_updates(gradients: Sequence[Gradient]) -> dict[str, float]:
    """Metrics of a step: means over its updates; shares and extremes over the tokens of all updates."""
    rows = [gradient.metrics() for gradient in gradients]
    metrics = {name: mean(row[name] for row in rows) for name in rows[0]}
    together = reduce(add, (gradient.statistics for gradient in gradients)).metrics()
    return metrics | {name: together[name] for name in (*SIGNAL_SHARES, "ratio_min", "ratio_max") if name in together}


def accumulate_gradients(
    policy: Policy,
    groups: Sequence[Group],
    config: Config,
    critic: Critic | None = None,
    warming_up: bool = False,
    traces: Traces | None = None,
    world: World = ALONE,
) -> Gradient:
    """Leaves this rank's share of one optimizer step's gradient in the weights, micro-batch by micro-batch. The
    optimizer adds the shares up.

    While the critic warms up, only the critic's weights get one. `traces` collects the values of every token.
    """
    lengths_N = torch.tensor([len(completion) for group in groups for completion in group.completions])
    divide_by = denominator(lengths_N, config.loss.aggregate, config.max_new_tokens)
    tokens = int(lengths_N.sum())
    contributors = contributing(groups, config, critic)
    kept = share(contributors, world)
    if traces:
        traces.discard(contributors)
    loss_scale = policy.loss_scale(max(divide_by, tokens))

    def accumulate(token_budget: int) -> Sums:
        # Sums stay on the GPU until the end: reading one earlier would make host and GPU wait for each other.
        zero = torch.zeros((), device=policy.device)
        total, gap, errors = None, zero, zero
        in_order = (completion for group in kept for completion in group.completions)
        for batch in pack(kept, token_budget, policy.device, padded=policy.padded):
            if critic is not None and not critic.shared:
                error = critic.loss(batch, None, tokens=tokens, clip=config.critic.clip)
                (loss_scale * error).backward()
                errors = errors + error.detach()
            loss, statistics, forward = _loss_of_micro_batch(policy, batch, config, divide_by, warming_up)
            if critic is not None and critic.shared:
                error = critic.loss(batch, forward.hidden_AC, tokens=tokens, clip=config.critic.clip)
                errors = errors + error.detach()
                loss = loss + config.critic.weight * error
            if loss.requires_grad:
                (loss_scale * loss).backward()
            if traces:
                traces.collect(islice(in_order, len(forward.logp_NL)), forward.logp_NL, forward.entropy_NL, divide_by)
            total = statistics if total is None else total + statistics
            gap = gap + forward.gap
        return Sums(total, float(gap), float(errors) if critic else 0.0)

    def discard_gradients() -> None:
        policy.model.zero_grad(set_to_none=True)
        if critic is not None:
            critic.optimizer.discard_gradients()

    found = within_memory(policy, config.system.token_budget, accumulate, discard_gradients, longest=longest_row(kept))
    unscale(policy.model.parameters(), loss_scale)
    if critic is not None:
        unscale((weight for _, weight in critic.named_parameters()), loss_scale)
    return reduce(add, world.meet(found)).gradient(critic is not None)


def share(groups: Sequence[Group], world: World) -> list[Group]:
    """The groups whose gradient this rank computes: whole ones, so that each prompt is computed once, balanced by
    tokens."""
    sizes = [len(g.prompt_tokens) + sum(done.sequence_length for done in g.completions) for g in groups]
    return world.share(groups, sizes)


@dataclass(frozen=True)
class Sums:
    """What a rank measured while it computed its share of a gradient; `+` adds ranks."""

    statistics: LossStatistics | None
    """None: the rank had no work."""
    gap: float
    """Summed |sampler logp − trainer logp|."""
    errors: float
    """Of the critic."""

    def __add__(self, other: Sums) -> Sums:
        measured = [each.statistics for each in (self, other) if each.statistics is not None]
        return Sums(reduce(add, measured) if measured else None, self.gap + other.gap, self.errors + other.errors)

    def gradient(self, has_critic: bool) -> Gradient:
        assert self.statistics is not None
        return Gradient(self.statistics, self.gap / float(self.statistics.tokens), self.errors if has_critic else None)


def unscale(weights: Iterable[torch.nn.Parameter], loss_scale: float) -> None:
    """Divides the gradients by the loss scale."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if loss_scale != 1.0 and gradients:
        torch._foreach_div_(gradients, loss_scale)


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """Values from the forward pass of a micro-batch."""

    hidden_AC: torch.Tensor
    logp_NL: torch.Tensor
    entropy_NL: torch.Tensor
    gap: torch.Tensor
    """Summed |sampler logp − trainer logp|."""


def _loss_of_micro_batch(
    policy: Policy, batch: Batch, config: Config, divide_by: float, warming_up: bool
) -> tuple[torch.Tensor, LossStatistics, ForwardResult]:
    with torch.set_grad_enabled(not warming_up):
        hidden_AC = predicting_states(policy, batch)
        logp_NL, entropy_NL = logprobs(
            policy, batch, config.temperature, hidden_AC=hidden_AC, train_entropy=config.loss.entropy > 0
        )
        old_logp_NL = logp_NL.detach() if batch.old_logp_NL is None else batch.old_logp_NL
        loss, statistics = loss_of(batch, logp_NL, old_logp_NL, entropy_NL, config.loss, divide_by)
    gap = (old_logp_NL - batch.sampler_logp_NL).abs().sum()
    return loss, statistics, ForwardResult(hidden_AC, logp_NL, entropy_NL, gap)


def loss_of(
    batch: Batch,
    logp_NL: torch.Tensor,
    old_logp_NL: torch.Tensor,
    entropy_NL: torch.Tensor,
    loss: Loss,
    divide_by: float,
) -> tuple[torch.Tensor, LossStatistics]:
    """`core.policy_loss` with the settings of the config."""
    return policy_loss(
        logp_NL,
        old_logp_NL,
        batch.advantages_NL,
        batch.mask_NL,
        denominator=divide_by,
        ratio=loss.ratio,
        surrogate=load_surrogate(loss.surrogate),
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        cap=loss.cap,
        gate_up=loss.gate_up,
        gate_down=loss.gate_down,
        aggregate=loss.aggregate,
        beta=loss_beta(loss),
        ref_logp=batch.ref_logp_NL,
        kl=loss.kl,
        entropy_weight=loss.entropy,
        entropy=entropy_NL,
        correction=loss.correction,
        correction_cap=loss.correction_cap,
        sampler_logp=batch.sampler_logp_NL,
    )
