"""Chapter 6, costs and family: the cost of a critic, related algorithms, and limits of GRPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.core import group_advantages, process_advantages, zero_signal_chance
from grpo.core.explain import tabular
from grpo.lab.chapters import budget, family, gpus, questions, relatives, reported
from grpo.lab.chapters.distance import train_tabular
from grpo.model.plan import flops, memory_of, needs
from grpo.model.plan.scaling import collectives, predicted_step
from grpo.model.plan.seconds import rollout_seconds
from grpo.model.plan.shard import pick_shard

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "memory": budget.memory,
    "largest": budget.largest,
    "accounting": budget.accounting,
    "compute": budget.compute,
    "groups": budget.group_costs,
    "measured": budget.measured,
    "critics": budget.critics,
    "small-critics": budget.small_and_large_critics,
    "scale": gpus.scale,
    "tree": family.tree,
    "preset": family.preset,
    "claims": family.claims,
    "results": reported.results,
    "defaults": reported.defaults,
    "methods": relatives.methods,
    "one-step": relatives.one_step,
    "why-groups": questions.why_groups,
    "group-sizes": questions.group_sizes,
    "batch": questions.across_the_batch,
    "open-ended": questions.open_ended,
    "imperfect": questions.imperfect_reward,
    "no-warm-start": questions.no_warm_start,
    "per-token": questions.per_token,
    "any-task": questions.any_task,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "memory_of": memory_of,
    "flops": flops,
    "needs": needs,
    "pick_shard": pick_shard,
    "collectives": collectives,
    "predicted_step": predicted_step,
    "rollout_seconds": rollout_seconds,
    "effect": family.effect,
    "group_estimates": relatives.group_estimates,
    "trpo_step": tabular.trpo_step,
    "dpo_loss": tabular.dpo_loss,
    "group_advantages": group_advantages,
    "process_advantages": process_advantages,
    "zero_signal_chance": zero_signal_chance,
    "train_tabular": train_tabular,
}
TRIALS: dict[str, dict[str, Any]] = {}
