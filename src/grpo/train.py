"""The loop: one batch from prompts to optimizer step, straight down.

`loop` is the whole of GRPO at one level; the functions below it are its lines, in order.
"""

from __future__ import annotations

import math
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import fmean as mean

import numpy as np
import torch

from grpo.batch import pack
from grpo.config import Config, Loss
from grpo.core import LossStatistics, denominator, group_advantages, policy_loss, reward_statistics
from grpo.evaluation import is_right
from grpo.optimizer import take_step
from grpo.policy import Policy, annotate, logprobs
from grpo.rewards import score
from grpo.schedule import learning_rate
from grpo.session import Session
from grpo.store import Run
from grpo.trace import Traces
from grpo.types import Completion, Group
from grpo.view import View


def train(config: Config, view: View | None = None) -> Run:
    """Trains as `config` says and returns the run, which holds everything that happened.

    `view` is told about every step and evaluation; without one, training is silent.
    """
    session = Session.start(config, view or View())
    with session.recorded():
        loop(session)
    return session.run


def loop(session: Session) -> None:
    config, task, engine, policy = session.config, session.task, session.engine, session.policy
    for step in range(session.first_step, config.steps):
        if step % (config.evaluation.every or config.steps) == 0:
            session.evaluate(step)
        clock = Clock()
        with clock("rollout"):
            problems = task.draw(step, config.prompts_per_step, config.seed)
            groups = engine.sample(problems, config.group_size, step=step, **session.sampling)
        with clock("reward"):
            groups = score(task, groups)
        with clock("update"):
            groups = annotated(groups, policy, session.reference, config)
            groups, rewards = credit(groups, config.loss)
            traces = Traces(groups, config.system.token_groups)
            updates = update(policy, session.optimizer, groups, config, step, traces)
        metrics = rewards | updates | describe(groups, clock)
        session.record(step, traces.onto(groups), metrics, clock.seconds)
        if session.stop.requested:
            return session.checkpoint(step + 1, last=True)
        if config.checkpoint_every and (step + 1) % config.checkpoint_every == 0:
            session.checkpoint(step + 1)
    session.evaluate(config.steps)
    session.checkpoint(config.steps, last=True)


class Clock:
    """Seconds of one step by phase.

    >>> clock = Clock()
    >>> with clock("rollout"):
    ...     pass
    >>> list(clock.seconds)
    ['rollout']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - start


def annotated(groups: Sequence[Group], policy: Policy, reference: Policy | None, config: Config) -> list[Group]:
    """+ log-probabilities under the reference, and under the policy as it stands: only those the updates need."""
    under = partial(annotate, temperature=config.temperature, token_budget=config.system.token_budget)
    groups = list(groups)
    if reference is not None:
        groups = under(groups, reference, lambda completion, logp: replace(completion, ref_logprobs=logp))
    # With a single update the old policy is the one that is training: its own detached value serves.
    if config.optimizer.epochs * config.optimizer.minibatches > 1:
        groups = under(groups, policy, lambda completion, logp: replace(completion, old_logprobs=logp))
    return groups


def credit(groups: Sequence[Group], loss: Loss) -> tuple[list[Group], dict[str, float]]:
    """+ advantages, the same for every token of a completion; and what the rewards looked like."""
    rewards_PG = torch.tensor([[np.nan if c.reward is None else c.reward for c in g.completions] for g in groups])
    lengths_PG = torch.tensor([[len(c) for c in g.completions] for g in groups])
    valid_PG = ~rewards_PG.isnan()
    advantages_PG = group_advantages(rewards_PG, valid_PG, lengths_PG, baseline=loss.baseline, scale=loss.scale)

    def credited(completion: Completion, advantage: float) -> Completion:
        return replace(completion, advantages=np.full(len(completion), advantage, dtype=np.float32))

    groups = [
        replace(group, completions=tuple(map(credited, group.completions, advantages_G)))
        for group, advantages_G in zip(groups, advantages_PG.tolist(), strict=True)
    ]
    return groups, reward_statistics(rewards_PG, advantages_PG, valid_PG)


def update(
    policy: Policy,
    optimizer: torch.optim.AdamW,
    groups: Sequence[Group],
    config: Config,
    step: int,
    traces: Traces | None = None,
) -> dict[str, float]:
    """`epochs` passes over the groups, each of `minibatches` optimizer steps; `traces` is shown every token."""
    settings = config.optimizer
    lr = learning_rate(
        config.lr, step, steps=config.steps, warmup_steps=settings.warmup_steps, schedule=settings.schedule
    )
    totals: list[LossStatistics] = []
    gaps, norms, skipped = [], [], 0
    for minibatch in minibatches(groups, config, step):
        # Without a gradient Adam's momentum would still move the weights: no step is taken.
        if not config.loss.beta and not has_signal(minibatch):
            continue
        statistics, gap = accumulate_gradients(policy, minibatch, config, traces)
        norm = take_step(policy, optimizer, lr=lr, grad_clip=settings.grad_clip)
        if not math.isfinite(norm):
            skipped += 1
            continue
        norms.append(norm)
        totals.append(statistics)
        gaps.append(gap)
    metrics = {"lr": lr, "updates": float(len(totals)), "skipped_updates": float(skipped)}
    if totals:
        per_update = [statistics.metrics() for statistics in totals]
        metrics |= {name: mean(row[name] for row in per_update) for name in per_update[0]}
        metrics["ratio_min"] = min(row["ratio_min"] for row in per_update)
        metrics["ratio_max"] = max(row["ratio_max"] for row in per_update)
        # Later updates compare a policy that has moved on; the first tells how well sampler and trainer agree.
        metrics |= {"grad_norm": mean(norms), "sampler_gap": gaps[0]}
    return metrics


def has_signal(groups: Sequence[Group]) -> bool:
    return any(c.advantages is not None and c.advantages.any() for group in groups for c in group.completions)


def minibatches(groups: Sequence[Group], config: Config, step: int) -> Iterator[list[Group]]:
    """Whole groups, in an order keyed by (seed, step, epoch); completions nobody could score are left out."""
    scored = [replace(g, completions=tuple(c for c in g.completions if c.reward is not None)) for g in groups]
    scored = [group for group in scored if group.completions]
    for epoch in range(config.optimizer.epochs):
        order = np.arange(len(scored))
        if config.optimizer.minibatches > 1:
            order = np.random.default_rng([config.seed, step, epoch]).permutation(order)
        for part in np.array_split(order, config.optimizer.minibatches):
            if len(part):
                yield [scored[i] for i in part]


def accumulate_gradients(
    policy: Policy, groups: Sequence[Group], config: Config, traces: Traces | None = None
) -> tuple[LossStatistics, float]:
    """Leaves the gradient of one optimizer step in the weights, micro-batch by micro-batch."""
    loss_settings = config.loss
    lengths_N = torch.tensor([len(completion) for group in groups for completion in group.completions])
    divide_by = denominator(lengths_N, loss_settings.aggregate, config.max_new_tokens)
    in_order = (completion for group in groups for completion in group.completions)
    total, gap = None, torch.zeros(())
    for batch in pack(groups, config.system.token_budget, policy.device):
        logp_NL, entropy_NL = logprobs(policy, batch, config.temperature)
        old_logp_NL = logp_NL.detach() if batch.old_logp_NL is None else batch.old_logp_NL
        loss, statistics = policy_loss(
            logp_NL,
            old_logp_NL,
            batch.advantages_NL,
            batch.mask_NL,
            denominator=divide_by,
            ratio=loss_settings.ratio,
            clip_low=loss_settings.clip_low,
            clip_high=loss_settings.clip_high,
            aggregate=loss_settings.aggregate,
            beta=loss_settings.beta,
            ref_logp=batch.ref_logp_NL,
            kl=loss_settings.kl,
            entropy=entropy_NL,
        )
        loss.backward()
        if traces:
            traces.see(islice(in_order, len(logp_NL)), logp_NL, entropy_NL, divide_by)
        total = statistics if total is None else total + statistics
        gap = gap + (old_logp_NL - batch.sampler_logp_NL).abs().sum().cpu()
    assert total is not None
    return total, float(gap) / float(lengths_N.sum())


def describe(groups: Sequence[Group], clock: Clock) -> dict[str, float]:
    """What was sampled: lengths, accuracy, the task's traits."""
    completions = [completion for group in groups for completion in group.completions]
    lengths = [len(completion) for completion in completions]
    metrics = {
        "accuracy": mean(is_right(completion.reward) for completion in completions),
        "length_mean": mean(lengths),
        "length_max": float(max(lengths)),
        "truncated": mean(completion.finish == "length" for completion in completions),
        "tokens": float(sum(lengths)),
        "tokens_per_second": sum(lengths) / clock.seconds["rollout"],
    }
    for trait in completions[0].traits:
        metrics[f"{trait}_share"] = mean(completion.traits[trait] for completion in completions)
    return metrics


class _CallableModule(types.ModuleType):
    """`grpo.train` names this module and the function in it; both readings of `grpo.train(config)` work."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _CallableModule
