"""AdamW on a network's weights, and its state as named tensors for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from grpo.config import Optimizer
from grpo.distributed.sharded import Replicas, Shards
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.kill_points import point
from grpo.model.lora import held_weights
from grpo.model.policy import Policy

LARGEST_LR = 0.1
"""Largest learning rate without a warning, as a share of the size of a typical weight: ten updates replace it."""
Named = Iterator[tuple[str, torch.Tensor]]
STATE = ("step", "exp_avg", "exp_avg_sq")
"""Adam's state of every weight."""


def make_optimizer(policy: Policy, settings: Optimizer, world: World = ALONE, shard: str = "none") -> AdamW:
    """The policy's optimizer. `shard`: what is divided among the ranks, as `scale.shard`."""
    return AdamW(policy.trainable(), settings, world, shard, held_weights(policy))


class AdamW:
    """AdamW on named weights. It has no learning rate of its own: the schedule sets it at every step.

    On several ranks, gradients are summed over them. With `shard` "optimizer" each rank has a part of Adam's moments
    and updates that part of the weights. With "weights" those in `held` are also converted to the precision given
    there, and each rank has the float32 values of its part.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        settings: Optimizer,
        world: World = ALONE,
        shard: str = "none",
        held: Mapping[torch.nn.Parameter, torch.dtype] | None = None,
    ):
        self.named, self.world = dict(named), world
        self.names, weights = list(self.named), list(self.named.values())
        if world.size == 1 or shard == "none":
            self.ranks: Replicas | Shards = Replicas(weights, world)
        else:
            narrow = held or {} if shard == "weights" else {}
            self.ranks = Shards(weights, world, {n: narrow[each] for n, each in enumerate(weights) if each in narrow})
        self.adam = torch.optim.AdamW(
            [{"params": self.ranks.parameters}],
            lr=0.0,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def descend(self, *, lr: float, grad_clip: float) -> float:
        """One update with the present gradients, summed over the ranks. Returns their norm before clipping.

        If the norm is not finite, no update is made: weights and optimizer state stay as they are.
        """
        total = self.ranks.reduce()
        torch.nn.utils.clip_grads_with_norm_(self.ranks.parameters, grad_clip, total)
        norm = float(total)
        if math.isfinite(norm):
            self.adam.param_groups[0]["lr"] = lr
            point("update.gradients")
            self.adam.step()
            point("update.stepped")
            self.ranks.publish()
        self.discard_gradients()
        return norm

    def discard_gradients(self) -> None:
        for weight in (*self.named.values(), *self.ranks.parameters):
            weight.grad = None

    def state(self) -> Named:
        """Adam's moments and step count of every weight, as `exp_avg/model.layers.0…`.

        If sharded, rank 0 gets each tensor when it is asked for the next one, and the other ranks get none; all ranks
        must read to the end.
        """
        for number, kind, tensor in self.ranks.gather(self.adam.state):
            yield f"{kind}/{self.names[number]}", tensor

    def whole(self, weights: Mapping[str, torch.Tensor]) -> Named:
        """The weights with float32 values in place of those that the model holds in 16 bits; read as `state`."""
        held = {self.names[number] for number in self.ranks.held}
        yield from ((name, tensor) for name, tensor in weights.items() if name not in held)
        for number, tensor in self.ranks.masters():
            yield self.names[number], tensor

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state that rank 0 read from a checkpoint, in which a weight without an update has none."""
        steps = self.world.from_first(lambda: self._steps(tensors))
        for kind in ("exp_avg", "exp_avg_sq"):
            values = {n: tensors[f"{kind}/{self.names[n]}"] for n in steps} if self.world.first else {}
            for parameter, moment in self.ranks.scatter(values, list(steps)).items():
                step = torch.tensor(steps[self.ranks.number[parameter]], device=parameter.device)
                self.adam.state[parameter] |= {"step": step, kind: moment}

    def _steps(self, tensors: Mapping[str, torch.Tensor]) -> dict[int, float]:
        """Number of updates of each weight with a state."""
        expected = {
            f"{kind}/{name}": () if kind == "step" else tuple(weight.shape)
            for name, weight in self.named.items()
            for kind in STATE
        }
        if not {name: tuple(tensor.shape) for name, tensor in tensors.items()}.items() <= expected.items():
            raise GrpoError("field resume: the checkpoint's optimizer state is of another model; start a new run")
        names = enumerate(self.names)
        return {number: float(tensors[f"step/{name}"]) for number, name in names if f"step/{name}" in tensors}

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces all weights by those that rank 0 read from a checkpoint."""
        values = {number: weights[name] for number, name in enumerate(self.names)} if self.world.first else {}
        for parameter, value in self.ranks.scatter(values, range(len(self.names))).items():
            parameter.copy_(value)
        self.ranks.publish()


def take_step(policy: Policy, optimizer: AdamW, *, lr: float, grad_clip: float) -> float:
    """`AdamW.descend` for the policy; increments its version if an update was made."""
    norm = optimizer.descend(lr=lr, grad_clip=grad_clip)
    policy.version += math.isfinite(norm)
    return norm


def lr_warnings(policy: Policy, lr: float) -> list[str]:
    """A warning where the learning rate is far too high: Adam moves every weight by about lr at each update."""
    # Without the gains of norms, which are 1, and the adapters that start at 0.
    matrices = [weight.detach() for _, weight in policy.trainable() if weight.ndim > 1]
    norms = torch.stack([torch.linalg.vector_norm(weight).float() for weight in matrices]).tolist()
    count = sum(weight.numel() for weight, norm in zip(matrices, norms, strict=True) if norm)
    typical = math.sqrt(sum(norm**2 for norm in norms) / max(1, count))
    if not typical or lr <= LARGEST_LR * typical:
        return []
    return [
        f"lr {lr:g} is {lr / typical:.2g} times a typical weight, {typical:.2g} (root mean square), and "
        "Adam moves every weight by about lr at each update: a few updates replace the model; usual are 1e-6 to 1e-4, "
        "and 1e-5 to 1e-3 with LoRA"
    ]
