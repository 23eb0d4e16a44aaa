"""Random critics, and groups for them."""

from __future__ import annotations

from dataclasses import replace

import torch

from grpo.config import Config, Critic, Optimizer
from grpo.distributed.world import ALONE, World
from grpo.model.critic import Critic as CriticNetwork
from grpo.model.policy import Policy
from grpo.types import Group


def critic_of(body: Policy, *, shared: bool, seed: int = 5, world: World = ALONE, shard: str = "none") -> CriticNetwork:
    torch.manual_seed(seed)
    head = torch.nn.Linear(body.model.config.hidden_size, 1, dtype=body.model.dtype)
    return CriticNetwork(body, head, Optimizer(), world, shard, shared=shared)


def ppo(**changes: object) -> Config:
    settings = {"optimizer": Optimizer(warmup_steps=0), "critic": Critic(warmup_steps=0)} | changes
    config = Config(algorithm="ppo", **settings)
    return replace(config, loss=replace(config.loss, beta=0.0))


def rewarded(groups: list[Group]) -> list[Group]:
    return [
        replace(g, completions=tuple(replace(c, reward=float(i % 2)) for i, c in enumerate(g.completions)))
        for g in groups
    ]
