"""Chapter 7, training: runs of `nano`, several seeds each; settings, comparisons, and a clinic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.lab.chapters import clinic, drift, knobs, listings, smoothness
from grpo.lab.trials.perform import perform
from grpo.record.diagnosis import diagnose

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "smoothness": smoothness.smoothness,
    "drift": drift.drift,
    "drifted": drift.recorded_drift,
    "convergence": drift.convergence,
    "clinic": clinic.clinic,
    "diagnosis": clinic.diagnosis,
    "hyperparameters": knobs.hyperparameters,
    "presets": knobs.presets,
    "ranges": knobs.metric_ranges,
    "rules": knobs.rules_of_thumb,
    "loss_value": knobs.loss_value,
    "clip_fractions": listings.clip_fractions,
    "penalty": listings.penalty_gradient,
    "sequence": listings.sequence_ratio,
    "each": listings.steps_per_sample,
    "mean_advantage": listings.mean_advantage,
    "modes": listings.modes,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "perform": perform,
    "diagnose": diagnose,
    "listed_clip_fraction": listings.listed_clip_fraction,
    "clip_fractions": listings.clip_fractions,
    "steps_per_sample": listings.steps_per_sample,
    "drift": drift.drift,
    "convergence": drift.convergence,
    "smoothness": smoothness.about,
    "hyperparameters": knobs.hyperparameters,
}
COMPARED = ["reward_mean", "worked_share", "grad_norm", "entropy"]
TRIALS: dict[str, dict[str, Any]] = {
    "ppo-and-grpo": {
        "arms": [
            {"label": "GRPO", "settings": {"algorithm": "grpo"}},
            {"label": "PPO", "settings": {"algorithm": "ppo", "critic.lr": 0.001}},
        ],
        "seeds": 5,
        "steps": 80,
        "metrics": COMPARED,
    },
    "kl-over-beta": {
        "arms": [
            {"label": "β = 0.0001", "settings": {"loss.beta": 0.0001}},
            {"label": "β = 0.04", "settings": {"loss.beta": 0.04}},
            {"label": "β = 0.3", "settings": {"loss.beta": 0.3}},
            {"label": "β = 0.3, reference replaced every 40 steps", "settings": {"loss.beta": 0.3, "loss.refresh": 40}},
        ],
        "seeds": 3,
        "steps": 200,
        "metrics": ["kl", "reward_mean"],
    },
    "updates": {
        "arms": [
            {"label": "1 update per batch", "settings": {}},
            {"label": "4 epochs", "settings": {"optimizer.epochs": 4}},
            {"label": "2 epochs of 4 minibatches", "settings": {"optimizer.epochs": 2, "optimizer.minibatches": 4}},
        ],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "loss", "clip_high", "clip_low", "ratio_max", "kl", "advantage_std"],
    },
    "dashboard": {
        "arms": [
            {"label": "ε 0.2, β 0.04, G 8", "settings": {"optimizer.epochs": 2}},
            {
                "label": "ε 0.02",
                "settings": {"optimizer.epochs": 2, "loss.clip_low": 0.02, "loss.clip_high": 0.02},
            },
            {"label": "β 0.5", "settings": {"optimizer.epochs": 2, "loss.beta": 0.5}},
            {"label": "G 2", "settings": {"optimizer.epochs": 2, "group_size": 2, "prompts_per_step": 64}},
            {"label": "G 32", "settings": {"optimizer.epochs": 2, "group_size": 32, "prompts_per_step": 4}},
        ],
        "seeds": 3,
        "steps": 60,
        "metrics": ["reward_mean", "kl", "zero_signal_groups", "clip_high"],
    },
    **clinic.TRIALS,
}
