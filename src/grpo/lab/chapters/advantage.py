"""Chapter 3, the advantage: its baselines, and their bias and variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.core import group_advantages, policy_loss, reward_statistics
from grpo.core.explain.tabular import expected_estimate, true_gradient
from grpo.lab.chapters import ancestors, many_advantages, own_rewards, siblings
from grpo.training.credit import credit

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "group": own_rewards.own_group,
    "same": own_rewards.same_reward,
    "std": own_rewards.std_conventions,
    "prompts": own_rewards.two_prompts,
    "difficulty": own_rewards.push_by_difficulty,
    "tabular": siblings.tabular_updates,
    "nano": siblings.nano_update,
    "ancestors": ancestors.ancestors,
    "sizes": ancestors.by_group_size,
    "baseline": ancestors.baseline_term,
    "histogram": many_advantages.histogram,
    "values": many_advantages.two_values,
    "mean": many_advantages.group_mean,
    "own": many_advantages.own_baseline,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "group_advantages": group_advantages,
    "reward_statistics": reward_statistics,
    "policy_loss": policy_loss,
    "credit": credit,
    "nano_update": siblings.nano_update,
    "moments": ancestors.moments,
    "true_gradient": true_gradient,
    "expected_estimate": expected_estimate,
    "tabular_updates": siblings.tabular_updates,
    "histogram": many_advantages.histogram,
    "std_conventions": own_rewards.std_conventions,
}
TRIALS: dict[str, dict[str, Any]] = {}
