"""Chapter `group`: many answers to one question."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch

from grpo.config import Config
from grpo.config.schema import resolve
from grpo.core import group_advantages, reward_statistics, zero_signal_chance
from grpo.core.explain.tabular import true_gradient
from grpo.errors import GrpoError
from grpo.lab.chapters import shipped
from grpo.lab.chapters.nano import LONGEST, Nano, fresh_nano, nano, sampled, sum_of_three
from grpo.lab.chapters.query import Query, number, text, whole
from grpo.lab.chapters.spread import chance, estimates, group_estimate, group_of_one, sizes
from grpo.lab.signal import difficulty
from grpo.model.packing import pack
from grpo.model.policy import logprobs
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.credit import credit, has_signal
from grpo.training.gradient import accumulate_gradients
from grpo.types import Group

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
SWEPT = 24
"""Number of problems sampled at every temperature."""
TRIED, TRIES = 24, 64
"""Problems and completions per problem for the observed share of zero-signal groups."""


def samples(query: Query) -> dict[str, Any]:
    """A newly sampled group of `nano`: rewards and advantages."""
    problem = sum_of_three(text(query, "prompt", "37+85+46="))
    size, temperature = whole(query, "g", 8, 2, 64), number(query, "t", 1.0, 0.1, 2.0)
    [group] = sampled([problem], size, seed=whole(query, "seed", 1, 0, 9999), temperature=temperature)
    rewards_1G = torch.tensor([[done.reward for done in group.completions]], dtype=torch.float64)
    advantages_1G = group_advantages(rewards_1G)
    task = Arithmetic("easy")
    return {
        "prompt": problem.prompt,
        "answer": problem.answer,
        "statistics": reward_statistics(rewards_1G, advantages_1G, torch.ones_like(rewards_1G) > 0),
        "completions": [
            {
                "text": done.text,
                "extracted": task.extract(done.text),
                "reward": done.reward,
                "advantage": advantage,
                "logprob": float(done.logprobs.sum()),
                "length": len(done),
                "worked": bool(done.traits["worked"]),
            }
            for done, advantage in zip(group.completions, advantages_1G[0].tolist(), strict=True)
        ],
        "distinct": len({done.text for done in group.completions}),
        "tokens": sum(map(len, group.completions)),
    }


def temperatures(query: Query) -> dict[str, Any]:
    """`nano` at every temperature: variety of the groups, and gradient norm."""
    size = whole(query, "g", 8, 2, 32)
    return {"problems": SWEPT, "group_size": size, "rows": [_at_temperature(t, size) for t in TEMPERATURES]}


@lru_cache(maxsize=128)
def _at_temperature(temperature: float, size: int) -> dict[str, Any]:
    config = Config(model="nano", group_size=size, temperature=temperature, max_new_tokens=LONGEST)
    config = resolve(replace(config, loss=replace(config.loss, beta=0.0)))
    with fresh_nano() as student:
        problems = student.task.draw(0, SWEPT, seed=1)
        sampling = Sampling(seed=1, temperature=temperature, max_new_tokens=LONGEST)
        groups = student.scorer.score(student.engine.sample(problems, size, sampling))
        groups, rewards = credit(groups, config)
        norm = gradient_norm(student, groups, config)
        gap, outside = mismatch(student, groups)
    return {
        "temperature": temperature,
        "distinct": fmean(len({done.text for done in group.completions}) for group in groups),
        "zero_signal": rewards["zero_signal_groups"],
        "reward_mean": rewards["reward_mean"],
        "grad_norm": norm,
        "gap": gap,
        "outside": outside,
    }


def gradient_norm(student: Nano, groups: Sequence[Group], config: Config) -> float:
    """Gradient norm of the loss over these groups, by the trainer's backward pass."""
    if not any(map(has_signal, groups)):
        return 0.0
    accumulate_gradients(student.policy, groups, config)
    return float(torch.nn.utils.clip_grad_norm_(student.policy.model.parameters(), math.inf))


@torch.no_grad()
def mismatch(student: Nano, groups: Sequence[Group]) -> tuple[float, float]:
    """If the trainer computed log-probabilities at temperature 1 for any sampler: mean |Δ log-probability|, and
    the share of tokens with a ratio outside 1 ± 0.2 before the first update."""
    [batch] = pack(groups, token_budget=1_000_000)
    logp_NL, _ = logprobs(student.policy, batch, 1.0)
    gap_A = (logp_NL - batch.sampler_logp_NL)[batch.mask_NL]
    ratio_A = gap_A.exp()
    return float(gap_A.abs().mean()), float(((ratio_A < 0.8) | (ratio_A > 1.2)).double().mean())


def observed(query: Query) -> dict[str, Any]:
    """Observed shares of groups without signal: per step of the recorded run, and per prompt of `nano`."""
    size = whole(query, "g", 8, 2, 64)
    with shipped.opened() as run:
        found = difficulty(run, points=100)
    steps = [
        {key: row[key] for key in ("step", "pass_rate", "observed_zero_signal", "groups_by_right")}
        for row in found["columns"]
    ]
    prompts = _prompts() if TRIES % size == 0 else []
    return {
        "group_size": size,
        "recorded": {"group_size": found["group_size"], "steps": steps},
        "prompts": [_against_chance(prompt, rewards, size) for prompt, rewards in prompts],
        "tries": TRIES,
    }


@lru_cache(maxsize=1)
def _prompts() -> list[tuple[str, list[float]]]:
    with nano() as loaded:
        problems = loaded.task.draw(7, TRIED, seed=1)
    groups = sampled(problems, TRIES, seed=3)
    return [(group.problem.prompt, [done.reward or 0.0 for done in group.completions]) for group in groups]


def _against_chance(prompt: str, rewards: list[float], size: int) -> dict[str, Any]:
    groups = [rewards[first : first + size] for first in range(0, len(rewards), size)]
    return {
        "prompt": prompt,
        "pass_rate": fmean(rewards),
        "groups": len(groups),
        "observed": fmean(len(set(group)) == 1 for group in groups),
        "expected": zero_signal_chance(fmean(rewards), size),
    }


def baselines(query: Query) -> dict[str, Any]:
    """Variance of one recorded step's rewards that remains with each baseline.

    Completions of one prompt differ only by sampling. Across prompts, those of easy ones look good.
    """
    step = whole(query, "step", 3, 0, 79)
    with shipped.opened() as run:
        groups = run.groups(step)
    if not groups:
        raise GrpoError(f"step: {step} is not recorded")
    rewards_PG = torch.tensor([[done["reward"] for done in group["completions"]] for group in groups]).double()
    # Variance around one mean for all prompts, and around each prompt's mean.
    across = float(rewards_PG.var())
    within = float(rewards_PG.var(dim=1).mean())
    by_batch_PG = group_advantages(rewards_PG, baseline="batch", scale="batch_std")
    by_group_PG = group_advantages(rewards_PG)
    return {
        "step": step,
        "variance": {"across": across, "within": within},
        "between_prompts": max(0.0, 1 - within / across) if across else 0.0,
        "groups": [
            {
                "prompt": group["prompt"],
                "kind": "product" if "*" in group["prompt"] else "sum",
                "pass_rate": float(rewards_G.mean()),
                "rewards": rewards_G.tolist(),
                "by_batch": batch_G.tolist(),
                "by_group": group_G.tolist(),
            }
            for group, rewards_G, batch_G, group_G in zip(groups, rewards_PG, by_batch_PG, by_group_PG, strict=True)
        ],
    }


ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "samples": samples,
    "temperatures": temperatures,
    "chance": chance,
    "observed": observed,
    "sizes": sizes,
    "estimates": estimates,
    "group_of_one": group_of_one,
    "baselines": baselines,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "sample": Engine.sample,
    "sample_token": sample_token,
    "score": Arithmetic.score,
    "group_advantages": group_advantages,
    "zero_signal_chance": zero_signal_chance,
    "group_estimate": group_estimate,
    "true_gradient": true_gradient,
    "mismatch": mismatch,
    "gradient_norm": gradient_norm,
}
TRIALS: dict[str, dict[str, Any]] = {
    "group-size": {
        "arms": [
            {"label": "G = 2, 64 prompts", "settings": {"group_size": 2, "prompts_per_step": 64}},
            {"label": "G = 8, 16 prompts", "settings": {"group_size": 8, "prompts_per_step": 16}},
            {"label": "G = 64, 2 prompts", "settings": {"group_size": 64, "prompts_per_step": 2}},
        ],
        "seeds": 3,
        "steps": 50,
        "metrics": ["reward_mean", "zero_signal_groups", "grad_norm"],
    },
    "temperature": {
        "arms": [{"label": f"T = {t}", "settings": {"temperature": t}} for t in (0.4, 1.0, 1.6)],
        "seeds": 3,
        "steps": 50,
        "metrics": ["reward_mean", "zero_signal_groups", "entropy"],
    },
}
