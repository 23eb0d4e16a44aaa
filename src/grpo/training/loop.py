"""The training loop: `loop` runs each step from prompts to optimizer step; the functions below are its helpers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean as mean
from typing import Any

from grpo.config import Config
from grpo.distributed.world import ALONE, World, joined
from grpo.model.critic import Critic
from grpo.model.optimizer import AdamW, take_step
from grpo.model.policy import Policy
from grpo.model.schedule import learning_rate
from grpo.record.episode_metrics import episode_metrics
from grpo.record.events import Callback
from grpo.record.store import Run
from grpo.record.trace import Traces
from grpo.rewards.handed_over import Function, Reward
from grpo.training.annotations import Annotations, add_old_logprobs
from grpo.training.credit import credit
from grpo.training.dynamic_sampling import replace_without_signal
from grpo.training.evaluation import logged_means, part_means, trait_shares
from grpo.training.gradient import (
    accumulate_gradients,
    contributing,
    gradient_token_share,
    minibatches,
    over_updates,
)
from grpo.training.inputs import Inputs
from grpo.training.session import Session
from grpo.types import Group


def train(
    config: Config,
    *,
    task: Any = None,
    reward: Reward | Sequence[Reward] | None = None,
    data: Any = None,
    eval_data: Any = None,
    eval_reward: Reward | Sequence[Reward] | None = None,
    tools: str | Function | Sequence[str | Function] | None = None,
    env: str | type | Mapping[str, str | type] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a model with this config and return its run, the full record.

    Objects may be handed over in place of the config's texts. `task`: an object or class with the methods of
    docs/tasks.md. `reward`: a function of (problem, text) or of (completions, **columns), or a list of functions, texts
    and tuples (function, weight); functions run in worker processes. `data`: a list of dicts, a `datasets.Dataset`, a
    pandas data frame, or a mapping from splits to any of them. `eval_data`: the same for held-out rows, in place of
    `config.dataset.heldout`. `eval_reward`: the reward of evaluations, in place of `config.evaluation.reward`.
    `tools`: functions that the model may call, with types and a docstring. `env`: the class of an environment, or a
    dictionary of several, of which the column `environment` of a row names its own.

    `callbacks` are instances of `grpo.Callback` subclasses. Without any, only warnings are printed.
    """
    config, inputs = Inputs.take(config, task, reward, data, eval_data, eval_reward, tools, env)
    with joined(config.scale, config.system.device) as world:
        session = Session.start(config, callbacks, inputs, world)
        with session.recorded():
            loop(session)
    return session.run


def loop(session: Session) -> None:
    config, policy, world = session.config, session.policy, session.world
    for step in range(session.first_step, config.steps):
        if step % (config.evaluation.every or config.steps) == 0:
            session.evaluate(step)
        session.refresh_reference(step)
        clock = Clock("rollout", "reward", "update")
        with clock("rollout"):
            problems = world.mine(session.draw(step, config.prompts_per_step, config.seed))
            scoring = session.sample(problems, step)
        with clock("update"):
            annotations = Annotations.start(scoring.groups, policy, session.reference, config, session.critic)
        with clock("reward"):
            groups = session.scored(scoring)
        with clock("rollout"):
            groups, draws = replace_without_signal(groups, session, step)
        with clock("update"):
            groups = world.gather(annotations.finish(groups))
            groups, rewards = credit(groups, config)
            groups = add_old_logprobs(groups, policy, config, world)
            traces = Traces(groups, config.system.token_groups)
            updates = update(policy, session.optimizer, groups, config, step, session.critic, traces, world)
        metrics = rewards | updates | completion_metrics(groups, draws, clock)
        session.record(step, traces.add_to(groups), metrics, clock.seconds)
        if session.stopping:
            return session.checkpoint(step + 1, last=True)
        if config.checkpoint_every and (step + 1) % config.checkpoint_every == 0:
            session.checkpoint(step + 1)
    session.evaluate(config.steps)
    session.checkpoint(config.steps, last=True)


class Clock:
    """Seconds of one step by phase, in the order of the arguments.

    >>> clock = Clock("rollout", "update")
    >>> with clock("update"):
    ...     pass
    >>> list(clock.seconds), clock.seconds["rollout"]
    (['rollout', 'update'], 0.0)
    """

    def __init__(self, *phases: str) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start


def update(
    policy: Policy,
    optimizer: AdamW,
    groups: Sequence[Group],
    config: Config,
    step: int,
    critic: Critic | None = None,
    traces: Traces | None = None,
    world: World = ALONE,
) -> dict[str, float]:
    """`epochs` passes over the groups, each of `minibatches` optimizer steps. `traces` collects token values."""
    settings = config.optimizer
    scheduled = partial(
        learning_rate, step=step, steps=config.steps, warmup_steps=settings.warmup_steps, schedule=settings.schedule
    )
    lr = scheduled(config.lr)
    warming_up = critic is not None and step < config.critic.warmup_steps
    gradients, norms, critic_norms, skipped = [], [], [], 0
    for minibatch in minibatches(groups, config, step):
        # Without a gradient, Adam's momentum would still move the weights.
        if not contributing(minibatch, config, critic):
            continue
        found = accumulate_gradients(policy, minibatch, config, critic, warming_up, traces, world)
        if critic is not None:
            norm = critic.optimizer.descend(lr=scheduled(config.critic.lr), grad_clip=settings.grad_clip)
            skipped += not math.isfinite(norm)
            critic_norms.append(norm)
        if not warming_up:
            norm = take_step(policy, optimizer, lr=lr, grad_clip=settings.grad_clip)
            if not math.isfinite(norm):
                skipped += 1
                continue
            norms.append(norm)
        gradients.append(found)
    if traces:
        traces.gather(world)
    metrics = {"lr": lr, "updates": float(len(norms)), "skipped_updates": float(skipped)}
    if gradients:
        metrics |= over_updates(gradients)
        # Before the first update, sampler and trainer have the same weights: their gap is numerical.
        metrics["sampler_gap"] = gradients[0].gap
    metrics["gradient_tokens"] = gradient_token_share(groups, config.loss)
    if norms:
        metrics["grad_norm"] = mean(norms)
    if critic_norms:
        metrics["critic_grad_norm"] = mean(critic_norms)
    return metrics


def completion_metrics(groups: Sequence[Group], draws: Mapping[str, float], clock: Clock) -> dict[str, float]:
    """Metrics of the sampled completions: lengths, accuracy, reward parts, faults, traits, episodes, and dynamic
    sampling's `draws`."""
    completions = [completion for group in groups for completion in group.completions]
    lengths = [len(completion) for completion in completions]
    metrics = {
        "length_mean": mean(lengths),
        "length_max": float(max(lengths)),
        "truncated": mean(completion.truncated for completion in completions),
        "timeouts": mean(completion.why.startswith("timeout") for completion in completions),
        "crashes": mean(completion.why.startswith("crash") for completion in completions),
        "failures": mean(completion.why.startswith("failure") for completion in completions),
        "tokens": float(sum(lengths)),
        **draws,
    }
    metrics["tokens_per_second"] = metrics["tokens"] / clock.seconds["rollout"]
    judged = [completion.correct for completion in completions if completion.correct is not None]
    if judged:
        metrics["accuracy"] = mean(judged)
    metrics |= part_means(completions) | logged_means(completions) | trait_shares(completions)
    return metrics | episode_metrics(completions)
