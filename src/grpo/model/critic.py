"""The critic: predicts the reward still to come at every token. It is PPO's baseline; GRPO uses the group instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch

from grpo.config import Config, Optimizer
from grpo.core import value_loss
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.lora import adapt, held_weights
from grpo.model.optimizer import AdamW, Named
from grpo.model.policy import Policy, predicting_states
from grpo.types import Batch


class Critic:
    """A network with one output. A shared critic reads the policy's hidden states and owns only its output layer."""

    def __init__(
        self,
        body: Policy,
        head: torch.nn.Linear,
        settings: Optimizer,
        world: World = ALONE,
        shard: str = "none",
        *,
        shared: bool,
    ):
        self.body, self.head, self.shared = body, head, shared
        self.optimizer = AdamW(self.named_parameters(), settings, world, shard, held_weights(body))

    def values(self, batch: Batch, hidden_AC: torch.Tensor | None = None) -> torch.Tensor:
        """Value before each sampled token, [N, L], from the hidden state that predicts the token."""
        hidden_AC = predicting_states(self.body, batch) if hidden_AC is None else hidden_AC
        values_A = self.head(hidden_AC.to(self.head.weight.dtype))[:, 0]
        return torch.zeros_like(batch.sampler_logp_NL, dtype=values_A.dtype).masked_scatter(batch.mask_NL, values_A)

    def loss(self, batch: Batch, hidden_AC: torch.Tensor | None, *, tokens: int, clip: float) -> torch.Tensor:
        """This micro-batch's share of the mean error over the step's `tokens`."""
        assert batch.values_NL is not None
        assert batch.returns_NL is not None
        values_NL = self.values(batch, hidden_AC)
        return value_loss(values_NL, batch.values_NL, batch.returns_NL, batch.mask_NL, clip=clip) / tokens

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        if not self.shared:
            body = self.body.model.base_model.named_parameters()
            yield from ((f"body.{name}", weight) for name, weight in body if weight.requires_grad)
        yield from ((f"head.{name}", weight) for name, weight in self.head.named_parameters())

    def tensors(self) -> Named:
        """Weights and Adam's state by name, for a checkpoint; read as `AdamW.state`."""
        for name, tensor in chain(self.optimizer.whole(dict(self.named_parameters())), self.optimizer.state()):
            yield f"critic/{name}", tensor

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the tensors that rank 0 read from a checkpoint."""
        saved = {name.removeprefix("critic/"): tensor for name, tensor in tensors.items()}
        names = {name for name, _ in self.named_parameters()}
        if self.optimizer.world.first and not names <= saved.keys():
            raise GrpoError("field resume: the checkpoint's critic is of another model; start a new run")
        self.optimizer.load(saved)
        self.optimizer.restore({name: tensor for name, tensor in saved.items() if name not in names})


def make_critic(config: Config, policy: Policy, world: World = ALONE, shard: str = "none") -> Critic:
    """A copy of the run's first model, or an output layer on the policy (shared). Values start at 0."""
    shared = config.critic.model == "shared"
    dtype, device = policy.model.dtype, policy.device
    body = policy if shared else load_policy(config.model, device=str(device), dtype=dtype, compute=policy.compute)
    # Values add up small differences, so the output layer is in float32 or wider.
    head = torch.nn.Linear(
        body.model.config.hidden_size, 1, device=device, dtype=torch.promote_types(dtype, torch.float32)
    )
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    if config.lora.rank and not shared:
        adapt(body, config.lora, config.seed)
    return Critic(body, head, config.optimizer, world, shard, shared=shared)
