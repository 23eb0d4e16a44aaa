"""Random groups, and the gradient they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from grpo.config import Config, System
from grpo.model.critic import Critic
from grpo.model.policy import Policy
from grpo.training.annotations import Annotations
from grpo.training.loop import accumulate_gradients
from grpo.types import Completion, Group, Observation, Problem


def random_groups(seed: int = 0, groups: int = 4, group_size: int = 5, end: int = 1) -> list[Group]:
    """Ragged prompts and completions of random tokens with random advantages, some of them 0."""
    rng = np.random.default_rng(seed)

    def completion() -> Completion:
        length = int(rng.integers(1, 12))
        tokens = rng.integers(2, 48, length)
        advantage = float(rng.choice([0.0, 1.3, -0.7]))
        return Completion(
            "",
            tokens,
            rng.normal(-2, 0.5, length),
            "stop",
            reward=0.0,
            advantages=np.full(length, advantage, np.float32),
        )

    return [
        Group(
            Problem(f"p{i}", "", ""),
            rng.integers(2, 48, int(rng.integers(1, 9))),
            tuple(completion() for _ in range(group_size)),
            0,
        )
        for i in range(groups)
    ]


def random_episodes(seed: int = 0, groups: int = 4, group_size: int = 5) -> list[Group]:
    """The random groups, whose completions read up to three observations: before their first token, between two, and
    after their last. Some read nothing, and some observations have no tokens."""
    rng = np.random.default_rng([seed, 1])

    def observed(completion: Completion) -> Completion:
        places = sorted(rng.choice(len(completion) + 1, min(len(completion) + 1, int(rng.integers(4))), replace=False))
        seen = tuple(Observation(int(after), rng.integers(2, 48, int(rng.integers(5))), "") for after in places)
        return replace(completion, observations=seen)

    return [
        replace(group, completions=tuple(map(observed, group.completions)))
        for group in random_groups(seed, groups, group_size)
    ]


def gradient(policy: Policy, groups: list[Group], config: Config) -> torch.Tensor:
    accumulate_gradients(policy, groups, config)
    flat = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
    policy.model.zero_grad()
    return flat


def config_with(budget: int, algorithm: str, **loss: object) -> Config:
    config = Config(algorithm=algorithm, system=System(token_budget=budget), max_new_tokens=12)
    return replace(config, loss=replace(config.loss, **loss))


def annotated(
    groups: Sequence[Group], policy: Policy, reference: Policy | None, config: Config, critic: Critic | None = None
) -> list[Group]:
    """The groups with the per-token values of every forward that an update needs."""
    return Annotations.start(groups, policy, reference, config, critic).finish(groups)
