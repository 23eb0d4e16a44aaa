"""The main settings: their defaults, where these come from, and values reported elsewhere."""

from __future__ import annotations

from operator import attrgetter
from statistics import fmean
from typing import Any

from grpo.config import Config
from grpo.config.presets import PRESETS
from grpo.lab.chapters.query import Query
from grpo.lab.chapters.smoothness import jump
from grpo.lab.trials.recorded import recorded_arms
from grpo.record.metrics import METRICS

DEEPSEEKMATH = "DeepSeekMath 2024, arXiv:2402.03300, §4.2"
R1 = "DeepSeek-R1 (Nature 2025), as TRL's documentation quotes it"
TUTORIAL = "a widely copied tutorial"
KNOBS: tuple[dict[str, Any], ...] = (
    {
        "setting": "group_size",
        "symbol": "G",
        "effect": "A larger group has a better baseline and more often a signal; its cost is proportional.",
        "from": "Chosen here for one CPU core; half of R1's reported value.",
        "reported": [("64", DEEPSEEKMATH), ("16", R1), ("8, from 4 to 16", TUTORIAL)],
    },
    {
        "setting": "loss.clip_high",
        "symbol": "ε",
        "effect": "Limit on a token's ratio, beyond which it gets no gradient; no effect with one update per batch.",
        "from": "PPO's usual value, arXiv:1707.06347; DeepSeekMath gives none.",
        "reported": [("10", R1), ("0.2, from 0.1 to 0.3", TUTORIAL)],
    },
    {
        "setting": "loss.beta",
        "symbol": "β",
        "effect": "Weight of the KL penalty: less drift, slower gains.",
        "from": DEEPSEEKMATH,
        "reported": [("0.04", DEEPSEEKMATH), ("0.001", R1), ("0.1, from 0.01 to 0.5", TUTORIAL)],
    },
    {
        "setting": "optimizer.epochs",
        "symbol": "μ",
        "effect": "Epochs over a batch. With more than one, ratios leave 1 and ε matters.",
        "from": DEEPSEEKMATH,
        "reported": [("1", DEEPSEEKMATH), ("4, from 2 to 6", TUTORIAL)],
    },
    {
        "setting": "lr",
        "symbol": "η",
        "effect": "Too low: no learning. Too high: the policy collapses in a few steps.",
        "from": "Tuned here for models of a million weights; large models use a tenth or less.",
        "reported": [("1e-6", DEEPSEEKMATH), ("3e-6", R1), ("5e-6, from 1e-6 to 1e-5", TUTORIAL)],
    },
    {
        "setting": "prompts_per_step",
        "symbol": "B",
        "effect": "Prompts per step, each with G answers: B × G completions make one batch.",
        "from": "Chosen here; 16 × 8 completions fill one CPU core for a tenth of a second.",
        "reported": [("a batch of 1,024", DEEPSEEKMATH), ("32", R1), ("16, from 8 to 64", TUTORIAL)],
    },
)


def hyperparameters(query: Query) -> list[dict[str, Any]]:
    """The config's defaults and values reported elsewhere."""
    config = Config()
    return [
        {
            **{key: value for key, value in knob.items() if key != "reported"},
            "default": attrgetter(knob["setting"])(config),
            "flag": "--" + knob["setting"].replace("_", "-"),
            "reported": [{"value": value, "source": source} for value, source in knob["reported"]],
        }
        for knob in KNOBS
    ]


def presets(query: Query) -> list[dict[str, Any]]:
    """The settings of each preset, from the table that training reads."""
    rows = []
    for name, preset in PRESETS.items():
        loss = preset.settings
        row = {"name": name, "paper": preset.paper, "baseline": loss.baseline, "scale": loss.scale}
        rows.append(row | {"clip": [loss.clip_low, loss.clip_high], "beta": loss.beta, "surrogate": loss.surrogate})
    return rows


def loss_value(query: Query) -> dict[str, Any]:
    """Recorded arms with one update and with four passes: reward first and last, and largest |loss|, ratio and clip
    fraction, as means over seeds."""

    def most(arm: dict[str, Any], *names: str) -> float:
        columns = zip(*(arm["bands"][name] for name in names), strict=True)
        return max(abs(sum(point["mean"] for point in points)) for points in columns)

    def about(arm: dict[str, Any]) -> dict[str, Any]:
        rewards = arm["bands"]["reward_mean"]
        return {
            "reward": [rewards[0]["mean"], rewards[-1]["mean"]],
            "loss": most(arm, "loss"),
            "ratio": most(arm, "ratio_max"),
            "clipped": most(arm, "clip_low", "clip_high"),
        }

    one, several, *_ = recorded_arms("updates")
    return {"one": about(one), "several": about(several)}


TAIL = 20
RULES: tuple[tuple[str, str, str, str, str], ...] = (
    ("A larger group is more stable but slower", "dashboard", "G 32", "zero_signal_groups", "groups without signal"),
    ("A smaller ε makes updates smaller", "dashboard", "ε 0.02", "clip_high", "tokens clipped above"),
    ("A larger β stays closer to the reference", "dashboard", "β 0.5", "kl", "KL"),
    ("More epochs use samples better, and may overfit", "updates", "4 epochs", "reward_mean", "reward"),
)


def rules_of_thumb(query: Query) -> list[dict[str, Any]]:
    """Each rule of thumb with measured values: a metric over the run and its last 20 steps, the reward's change per
    step there, held-out accuracy."""

    def about(arm: dict[str, Any], metric: str) -> dict[str, Any]:
        means = [point["mean"] for point in arm["bands"][metric]]
        tails = [curve["value"][-TAIL:] for curve in arm["curves"]["reward_mean"]]
        return {
            "label": arm["label"],
            "whole": fmean(means),
            "late": fmean(means[-TAIL:]),
            "jump": fmean(jump(tail) for tail in tails),
            "accuracy": arm["accuracy"]["after"]["mean"],
        }

    rows = []
    for rule, trial, label, metric, words in RULES:
        base, *others = recorded_arms(trial)
        changed = next(arm for arm in others if arm["label"] == label)
        rows.append(
            {
                "rule": rule,
                "metric": metric,
                "words": words,
                "base": about(base, metric),
                "changed": about(changed, metric),
            }
        )
    return rows


CLAIMS: tuple[tuple[str, str, str], ...] = (
    ("reward_mean", "should increase", ""),
    (
        "advantage_std",
        "should be about 1",
        "Only while every group has signal: a group with equal rewards has advantages of 0.",
    ),
    ("kl", "should stay bounded", "With β it levels off; without, it grows while the reward can rise."),
    ("clip_high", "0.1 to 0.3", "Not a target. With one update per batch the ratio is 1 and nothing is clipped."),
)


def metric_ranges(query: Query) -> list[dict[str, Any]]:
    """Four metrics: a tutorial's claim, the healthy range of the metrics table, and measured values."""
    rows = []
    for name, claim, comment in CLAIMS:
        measured = []
        for arm in recorded_arms("updates"):
            points = arm["bands"].get(name, [])
            if points:
                means = [point["mean"] for point in points]
                measured.append({"arm": arm["label"], "first": means[0], "last": means[-1], "most": max(means)})
        rows.append(
            {"metric": name, "claim": claim, "comment": comment, "healthy": METRICS[name].healthy, "measured": measured}
        )
    return rows
