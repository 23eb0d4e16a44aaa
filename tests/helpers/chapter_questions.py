"""Random settings of every chapter answer that JavaScript computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Draw = Callable[[random.Random], dict[str, Any]]


def stop(low: float, high: float, step: float) -> Callable[[random.Random], str]:
    """A stop of a slider, as the page writes it."""
    return lambda draw: f"{low + step * draw.randrange(round((high - low) / step) + 1):.6g}"


def one(*choices: Any) -> Callable[[random.Random], str]:
    return lambda draw: str(draw.choice(choices))


def several(count: int, low: float, high: float, step: float) -> Callable[[random.Random], str]:
    each = stop(low, high, step)
    return lambda draw: ",".join(each(draw) for _ in range(count))


def rewards(draw: random.Random) -> str:
    return ",".join(draw.choice(["0", "1", f"{draw.random():.2f}"]) for _ in range(draw.randint(1, 12)))


PIECES = ("14", "the answer is", "20", "and", "I think", "=", "2 + 12", "so", "makes", ".", ",", "right", "####", "?")


def typed(draw: random.Random) -> str:
    """A text that a reader may type, with plain numbers."""
    return " ".join(draw.choice(PIECES) for _ in range(draw.randint(1, 6)))


CLIP = {"low": stop(0, 0.9, 0.05), "high": stop(0, 1, 0.05)}
THREE = {"p": several(3, 0.05, 1, 0.05), "r": several(3, 0, 1, 0.05)}
PLANNED = {
    "size": stop(0.5, 70, 0.5), "dtype": one("bfloat16", "mixed", "float32"), "lora": one(0, 16),
    "reference": one("yes", "no"), "g": stop(2, 64, 1), "new_tokens": stop(64, 4096, 64),
}  # fmt: skip
ASKED: dict[str, dict[str, Callable[[random.Random], str]]] = {
    "why/scratch": {"logp": stop(-5, 0, 0.25), "g": stop(2, 64, 1)},
    "why/judge": {"spread": stop(0, 1, 0.05), "noise": stop(0, 0.5, 0.01)},
    "why/aha": {"marker": one("(", "1", ";2", "wait")},
    "why/score": {"own": typed, "gold": one("14", "20")},
    "credit/strategies": {"own": typed},
    "credit/gamed": {"guesses": one("168\n161", "(18;16)168\n178\n179\nabc", "168 \n 167\n(16)1680000")},
    "costs/memory": {**PLANNED, "count": one("all", "states", "weights"), "judge": one("rule", "model")},
    "costs/largest": {**PLANNED, "card": one("4090", "a100-80", "h200", "b200")},
    "costs/compute": PLANNED,
    "costs/groups": PLANNED,
    "costs/critics": PLANNED,
    "costs/scale": {
        "model": one("smollm2-135m", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b"),
        "gpu": one("4090", "a100-80", "h200", "b200"), "gpus": one(2, 4, 8), "nodes": one(1, 2, 4, 16, 128),
        "inside": one("nvlink", "pcie"), "between": one("400gbit", "1gbit"), "prompts": stop(8, 512, 8),
        "shard": one("auto", "none", "optimizer", "weights"),
    },
    "costs/methods": {"size": stop(0.5, 70, 0.5), "g": stop(2, 16, 1), "lift": stop(0, 10, 0.5)},
    "costs/one-step": {"max_kl": stop(0.005, 0.5, 0.005), "beta": stop(0.1, 3, 0.1)},
    "costs/imperfect": {"beta": stop(0, 1, 0.02)},
    "costs/no-warm-start": {"g": stop(2, 64, 1)},
    "notation/softmax": {"logits": several(3, -5, 5, 0.5), "t": stop(0.1, 3, 0.1)},
    "notation/sequence": {"p": several(4, 0.05, 1, 0.05)},
    "notation/slope": {},
    "group/chance": {"p": stop(0, 1, 0.01), "g": one(2, 4, 8, 16, 32, 64)},
    "group/sizes": {"p": stop(0.01, 0.99, 0.01)},
    "group/estimates": {"p": stop(0.02, 0.98, 0.02)},
    "group/group_of_one": {"r": stop(0, 1, 0.1)},
    "advantage/group": {"of": one("run", "six"), "rewards": rewards},
    "advantage/same": {"reward": stop(0, 1, 0.05)},
    "advantage/std": {},
    "advantage/prompts": {"easy": stop(0, 8, 1), "hard": stop(0, 8, 1), "pay": stop(0.5, 10, 0.5)},
    "advantage/difficulty": {"g": stop(2, 64, 1)},
    "advantage/values": {"g": stop(2, 64, 1)},
    "advantage/mean": {"p": stop(0, 1, 0.05), "g": stop(1, 64, 1)},
    "advantage/tabular": {
        "rewards": several(5, 0, 1, 0.1), "g": stop(2, 64, 1), "seed": stop(0, 50, 1), "updates": stop(0, 60, 1),
        "lr": stop(0.05, 2, 0.05), "scale": one("group_std", "none"),
    },
    "advantage/ancestors": {**THREE, "g": stop(2, 6, 1), "critic": stop(-1, 1, 0.05)},
    "advantage/sizes": THREE,
    "advantage/baseline": {**THREE, "b": stop(-1, 2, 0.05)},
    "loss/ratio": {"old": stop(0.01, 0.99, 0.01), "new": stop(0.01, 0.99, 0.01), "advantage": one(1, -1), **CLIP},
    "loss/cards": CLIP,
    "loss/clip": {
        "ratio": stop(0.05, 2.5, 0.05), "advantage": one(1, -1, 0.5), "cap": one(0, 2),
        "surrogate": one("clip", "weight", "gate", "plain"), **CLIP,
    },
    "loss/histogram": CLIP,
    "loss/levels": {"length": stop(1, 200, 1), "drift": stop(-0.1, 0.1, 0.005), "jump": stop(-2, 2, 0.1)},
    "loss/kl": {"policy": stop(0.01, 0.99, 0.01), "reference": stop(0.01, 0.99, 0.01), "beta": stop(0, 1, 0.01)},
    "loss/bars": {"policy": several(4, 0.05, 1, 0.05), "reference": several(4, 0.05, 1, 0.05)},
    "loss/drift": {"beta": stop(0, 1, 0.01), "kl": one("k1", "k2", "k3", "k3_ratio"), "seeds": one(1, 3)},
    "loss/aggregation": {"short": stop(1, 40, 1), "long": stop(1, 40, 1), "a_short": stop(-2, 2, 0.1)},
    "loss/trl": {"algorithm": one("grpo", "dapo", "reinforce++"), "g": stop(2, 64, 1), "updates": stop(1, 8, 1)},
    "train/drift": {"beta": stop(0, 1, 0.01), "kl": one("k1", "k2", "k3")},
    "train/convergence": {"g": stop(2, 5, 1)},
    "train/clip_fractions": {"epsilon": stop(0.05, 0.5, 0.05)},
    "train/penalty": {},
    "train/sequence": {"tokens": stop(1, 1000, 1), "percent": stop(0.05, 5, 0.05)},
    "train/each": {"lr": stop(0.05, 2, 0.05), "epochs": stop(1, 8, 1)},
}  # fmt: skip

NANO: list[tuple[str, str, dict[str, str]]] = [
    ("group", "samples", {"g": "16", "t": "0.8", "seed": "3"}),
    ("why", "gap", {"prompt": "41+17+88="}),
    *(("why", "update", {"phase": str(phase), "lr": "0.0003"}) for phase in range(5)),
    ("advantage", "nano", {"seed": "2"}),
    ("credit", "tokens", {"gamma": "0.9", "lam": "0.5", "sample": "3"}),
    ("credit", "tokens", {"prompt": "58+27+94=", "seed": "2", "lam": "1"}),
    ("credit", "steps", {"turned": "0.0,2.0"}),
    ("credit", "presets", {"prompt": "66+39+71="}),
    ("turns", "game", {"hidden": "4", "seed": "2", "sample": "5"}),
    ("loss", "own", {}),
    ("loss", "own", {"updates": "1", "beta": "0"}),
    ("loss", "own", {"texts": "92\n91"}),
    ("loss", "token", {"sample": "1", "token": "3", "low": "0.05", "lr": "0.001"}),
    ("loss", "fifty", {"updates": "8"}),
]
"""Answers that nano's weights enter, which are float32."""


def asked(times: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(chapter, answer, settings), always the same; each once without settings."""
    draw = random.Random(5)
    for name, settings in ASKED.items():
        slug, key = name.split("/")
        yield slug, key, {}
        for _ in range(times if settings else 0):
            yield slug, key, {setting: value(draw) for setting, value in settings.items()}


def typed_answers(times: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    draw = random.Random(8)
    return (("why", "score", {"own": typed(draw)}) for _ in range(times))
