"""Chapter `credit`: which token earned the reward, and what a reward cannot see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.core import gae, group_advantages, process_advantages, value_loss
from grpo.lab.chapters.attribution import presets, steps, tokens, true_value
from grpo.lab.chapters.bootstrapping import bootstrapping
from grpo.lab.chapters.gaming import careless, gamed, near, near_as_in_trl, reward_calls, strategies
from grpo.model.critic import Critic
from grpo.rewards.pool.invoke import invoke
from grpo.rewards.steps import score_steps
from grpo.tasks.arithmetic import Arithmetic
from grpo.tasks.gameable import close_and_brief, exact
from grpo.training.credit import credit

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "strategies": strategies,
    "gamed": gamed,
    "tokens": tokens,
    "bootstrapping": bootstrapping,
    "steps": steps,
    "presets": presets,
    "rewards": reward_calls,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "group_advantages": group_advantages,
    "gae": gae,
    "bootstrapping": bootstrapping,
    "value_loss": value_loss,
    "process_advantages": process_advantages,
    "values": Critic.values,
    "true_value": true_value,
    "credit": credit,
    "score_steps": score_steps,
    "marks": Arithmetic.steps,
    "close_and_brief": close_and_brief,
    "exact": exact,
    "near": near,
    "near_as_in_trl": near_as_in_trl,
    "careless": careless,
    "invoke": invoke,
}
LIGHT_CRITIC = {"algorithm": "ppo", "critic.model": "shared", "critic.lr": 3e-3, "loss.credit": "process"}
"""Process rewards, and a critic that is one more output of the policy network."""
TRIALS: dict[str, dict[str, Any]] = {
    "gamed": {
        "arms": [
            {"label": "gameable", "settings": {"task": "gameable"}},
            {"label": "gameable, β = 0.5", "settings": {"task": "gameable", "loss.beta": 0.5}},
            {"label": "gameable, β = 2", "settings": {"task": "gameable", "loss.beta": 2.0}},
            {"label": "corrected", "settings": {"task": "gameable:mended"}},
            {"label": "corrected, β = 2", "settings": {"task": "gameable:mended", "loss.beta": 2.0}},
        ],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "right_share", "worked_share", "length_mean"],
    },
    "outcome-and-process": {
        "arms": [
            {"label": "outcome", "settings": {}},
            {"label": "process", "settings": {"loss.credit": "process"}},
            {"label": "process, small critic", "settings": LIGHT_CRITIC},
        ],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "worked_share"],
    },
}
