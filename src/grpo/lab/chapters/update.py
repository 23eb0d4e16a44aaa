"""One update of GRPO, stopped after each phase: the trainer's functions in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.core import token_terms
from grpo.lab.chapters.nano import LONGEST, Nano, fresh_nano, nano, sum_of_three
from grpo.lab.chapters.query import Query, number, text, whole
from grpo.model.optimizer import AdamW, make_optimizer, take_step
from grpo.model.policy import Policy, logprobs
from grpo.record.trace import Traces
from grpo.rollout.protocol import Sampling
from grpo.training.annotations import Annotations, annotate
from grpo.training.credit import credit
from grpo.training.gradient import accumulate_gradients
from grpo.types import Completion, Group, Problem

PHASES = ("sample", "score", "compare", "loss", "update")
FRESH_SAMPLES = 256
"""Number of completions for comparing the policy before and after an update."""


@dataclass(frozen=True, eq=False)
class Pause:
    """The state of the update after a phase."""

    groups: Sequence[Group]
    measured: Mapping[str, float] = field(default_factory=dict)


def one_update(
    student: Nano, reference: Policy, optimizer: AdamW, problems: Sequence[Problem], config: Config
) -> Iterator[Pause]:
    """One step of GRPO; yields after every phase."""
    groups = student.engine.sample(problems, config.group_size, _sampling(config))
    yield Pause(groups)
    groups = student.scorer.score(groups)
    yield Pause(groups)
    groups, rewards = credit(Annotations.start(groups, student.policy, reference, config).finish(groups), config)
    yield Pause(groups, rewards)
    traces = Traces(groups, count=len(groups))
    gradient = accumulate_gradients(student.policy, groups, config, traces=traces)
    yield Pause(traces.add_to(groups), gradient.metrics())
    norm = take_step(student.policy, optimizer, lr=config.lr, grad_clip=config.optimizer.grad_clip)
    yield Pause(traces.add_to(groups), {"grad_norm": norm})


def _sampling(config: Config) -> Sampling:
    return Sampling(seed=config.seed, temperature=config.temperature, max_new_tokens=config.max_new_tokens)


def settings(query: Query) -> Config:
    """The config of one update with one prompt; all other settings are defaults."""
    return resolve(
        Config(
            model="nano",
            prompts_per_step=1,
            group_size=whole(query, "g", 8, 2, 32),
            lr=number(query, "lr", 1e-4, 1e-5, 1e-3),
            seed=whole(query, "seed", 1, 0, 9999),
            max_new_tokens=LONGEST,
        )
    )


def paused_update(query: Query) -> dict[str, Any]:
    """Runs `one_update` up to the requested phase and returns its state."""
    config, reached = settings(query), whole(query, "phase", 0, 0, len(PHASES) - 1)
    problem = sum_of_three(text(query, "prompt", "29+60+75="))
    with nano() as before, fresh_nano() as student:
        optimizer = make_optimizer(student.policy, config.optimizer)
        phases = one_update(student, before.policy, optimizer, [problem], config)
        pauses = [next(phases) for _ in range(reached + 1)]
        last = pauses[-1].groups[0]
        measured = {name: value for pause in pauses for name, value in pause.measured.items()}
        answer = {
            "phase": PHASES[reached],
            "prompt": problem.prompt,
            "answer": problem.answer,
            "group_size": config.group_size,
            "completions": [_completion(done, config, before) for done in last.completions],
            "measured": measured,
        }
        if PHASES[reached] == "update":
            answer["after"] = _effect(last, before, student, problem, config)
    return answer


def _completion(done: Completion, config: Config, policy: Nano) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": done.text,
        "tokens": [*policy.policy.tokenizer.batch_decode([[token] for token in done.tokens])],
        "logprobs": done.logprobs.tolist(),
        "reward": done.reward,
        "advantage": None if done.advantages is None else float(done.advantages.mean()),
    }
    if done.trace is not None:
        row["push"] = _push(done, config).tolist()
    return row


def _push(done: Completion, config: Config) -> torch.Tensor:
    """−∂loss/∂logp of every token at the first update, where old and new policy are the same."""
    assert done.trace is not None
    logp_L, advantages_L, ref_L = (
        torch.as_tensor(np.asarray(values)).double()
        for values in (done.trace.logprobs, done.advantages, done.ref_logprobs)
    )
    loss = config.loss
    terms = token_terms(
        logp_L, logp_L, advantages_L, denominator=done.trace.denominator, ref_logp_L=ref_L, beta=loss.beta, kl=loss.kl
    )
    return terms.push


def seen_by(policy: Policy, groups: Sequence[Group], config: Config) -> list[Group]:
    """The log-probabilities of the same completions under this policy."""
    return annotate(
        groups,
        lambda batch: logprobs(policy, batch, config.temperature)[0],
        "logprobs",
        token_budget=config.system.token_budget,
        policy=policy,
    )


def _effect(group: Group, before: Nano, after: Nano, problem: Problem, config: Config) -> dict[str, Any]:
    """The change of the completions' log-probabilities by the update, and of newly sampled answers."""
    [again] = seen_by(after.policy, [group], config)
    sampling = Sampling(seed=0, step=1, temperature=config.temperature, max_new_tokens=LONGEST)
    fresh = [
        one.scorer.score(one.engine.sample([problem], FRESH_SAMPLES, sampling))[0].completions
        for one in (before, after)
    ]
    return {
        "logprobs": [done.logprobs.tolist() for done in again.completions],
        "looks": FRESH_SAMPLES,
        "right": [fmean(done.reward or 0.0 for done in completions) for completions in fresh],
        "worked": [fmean(done.traits["worked"] for done in completions) for completions in fresh],
    }
