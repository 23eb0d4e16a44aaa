"""AdamW on a network's weights, and its state as named tensors for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

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


def make_optimizer(policy: Policy, settings: Optimizer) -> torch.optim.AdamW:
    return adamw((weight for _, weight in policy.trainable()), settings)


def adamw(weights: Iterable[torch.nn.Parameter], settings: Optimizer) -> torch.optim.AdamW:
    """An optimizer without a learning rate: the schedule sets it at every step."""
    optimizer = torch.optim.AdamW(
        weights,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    optimizer.register_step_post_hook(_increment_versions)
    return optimizer


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


def _increment_versions(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Increments the weights' versions, as fused updates do not; working copies (`model.fused.weights`) read them."""
    increment_version(weight for group in optimizer.param_groups for weight in group["params"])


def take_step(policy: Policy, optimizer: torch.optim.AdamW, *, lr: float, grad_clip: float) -> float:
    """`descend` for the policy; increments its version if an update was made."""
    norm = descend(optimizer, lr=lr, grad_clip=grad_clip)
    policy.version += math.isfinite(norm)
    return norm


def descend(optimizer: torch.optim.AdamW, *, lr: float, grad_clip: float) -> float:
    """One update with the present gradients. Returns their norm before clipping.

    If the norm is not finite, no update is made: weights and optimizer state stay as they are.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(weights, grad_clip))
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = lr
        point("update.gradients")
        optimizer.step()
        point("update.stepped")
    optimizer.zero_grad(set_to_none=True)
    return norm


def state_tensors(
    named: Iterable[tuple[str, torch.nn.Parameter]], optimizer: torch.optim.AdamW
) -> dict[str, torch.Tensor]:
    """Adam's moments and step count of every weight, as `exp_avg/model.layers.0…`."""
    return {f"{kind}/{name}": tensor for name, weight in named for kind, tensor in optimizer.state[weight].items()}


def restore_state(policy: Policy, optimizer: torch.optim.AdamW, tensors: Mapping[str, torch.Tensor]) -> None:
    expected = {
        f"{kind}/{name}": () if kind == "step" else tuple(weight.shape)
        for name, weight in policy.trainable()
        for kind in STATE
    }
    # A checkpoint before the first update has no state (no group had signal).
    if tensors and {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise GrpoError("field resume: the checkpoint's optimizer state is of another model; start a new run")
    if tensors:
        for name, weight in policy.trainable():
            optimizer.state[weight] = {kind: tensors[f"{kind}/{name}"].to(weight.device) for kind in STATE}
