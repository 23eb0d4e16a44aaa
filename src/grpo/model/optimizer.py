"""AdamW on a network's weights, and its state as named tensors for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch.autograd.graph import increment_version

from grpo.config import Optimizer
from grpo.errors import GrpoError
from grpo.kill_points import point
from grpo.model.policy import Policy

LARGEST_LR = 0.1
"""Largest learning rate without a warning, as a share of the size of a typical weight: ten updates replace it."""
STATE = ("step", "exp_avg", "exp_avg_sq")
"""Adam's state of every weight."""


def make_optimizer(policy: Policy, settings: Optimizer) -> AdamW:
    return AdamW(policy.trainable(), settings)


class AdamW:
    """AdamW on named weights. It has no learning rate of its own: the schedule sets it at every step."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]], settings: Optimizer):
        self.named = dict(named)
        self.adam = torch.optim.AdamW(
            self.named.values(),
            lr=0.0,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def descend(self, *, lr: float, grad_clip: float) -> float:
        """One update with the present gradients. Returns their norm before clipping.

        If the norm is not finite, no update is made: weights and optimizer state stay as they are.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.named.values(), grad_clip))
        if math.isfinite(norm):
            self.adam.param_groups[0]["lr"] = lr
            point("update.gradients")
            self.adam.step()
            point("update.stepped")
            # Fused updates do not increment the weights' versions; working copies (`model.fused.weights`) read them.
            increment_version(self.named.values())
        self.discard_gradients()
        return norm

    def discard_gradients(self) -> None:
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Adam's moments and step count of every weight, as `exp_avg/model.layers.0…`."""
        return {
            f"{kind}/{name}": tensor
            for name, weight in self.named.items()
            for kind, tensor in self.adam.state.get(weight, {}).items()
        }

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of a checkpoint, in which a weight without an update has none."""
        expected = {
            f"{kind}/{name}": () if kind == "step" else tuple(weight.shape)
            for name, weight in self.named.items()
            for kind in STATE
        }
        if not {name: tuple(tensor.shape) for name, tensor in tensors.items()}.items() <= expected.items():
            raise GrpoError("field resume: the checkpoint's optimizer state is of another model; start a new run")
        for name, weight in self.named.items():
            if f"step/{name}" in tensors:
                self.adam.state[weight] = {kind: tensors[f"{kind}/{name}"].to(weight.device) for kind in STATE}


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
