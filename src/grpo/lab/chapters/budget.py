"""Memory and FLOPs of training by the planner, and peaks measured on a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo.config.presets import PRESETS
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.chapters.query import Query, number, whole, word
from grpo.model.plan import (
    GIB,
    PRECISIONS,
    USABLE,
    Needs,
    Shape,
    Work,
    find_shape,
    flops,
    memory_of,
    needs,
    typical_shape,
)
from grpo.model.plan.gpus import GPUS
from grpo.model.plan.shape import SHAPES

MEASURED = RECORDINGS / "measured_memory.json"
STATES = ("weights", "gradients", "optimizer", "reference", "reward model", "critic")
"""Components that are needed without sampling, too."""


def _shape(query: Query) -> Shape:
    name = query.get("model", "")
    return find_shape(name) if name in SHAPES else typical_shape(f"{number(query, 'size', 7.0, 0.1, 500.0):g}B")


def _work(query: Query) -> Work:
    return Work(
        prompts=whole(query, "prompts", 16, 1, 256),
        group_size=whole(query, "g", 8, 1, 64),
        prompt_tokens=whole(query, "prompt_tokens", 256, 1, 8192),
        new_tokens=whole(query, "new_tokens", 1024, 1, 16384),
    )


def _needs(query: Query, algorithm: str) -> Needs:
    """The preset's needs; with `beta` 0 no reference is loaded."""
    found = needs(PRESETS[algorithm].settings)
    return replace(found, reference=False) if word(query, "reference", "yes", ("yes", "no")) == "no" else found


def memory(query: Query) -> dict[str, Any]:
    """Memory by component for GRPO and PPO; `count` selects weights, training states or everything."""
    shape, work = _shape(query), _work(query)
    precision = PRECISIONS[word(query, "dtype", "bfloat16", list(PRECISIONS))]
    lora = whole(query, "lora", 0, 0, 256)
    count = word(query, "count", "all", ("all", "states", "weights"))
    reward_model = shape if word(query, "judge", "rule", ("rule", "model")) == "model" else None
    rows: list[dict[str, Any]] = []
    for algorithm in ("grpo", "ppo"):
        needed = _needs(query, algorithm)
        found = memory_of(shape, work, needed, precision, on_gpu=True, lora=lora, reward_model=reward_model)
        components = dict(found.components)
        if count == "weights":
            components = _weights_only(components, needed)
        elif count == "states":
            components = {name: size for name, size in components.items() if name in STATES}
        total = found.peak if count == "all" else sum(components.values())
        rows.append(
            {
                "algorithm": algorithm,
                "components": components,
                "total": total,
                "models": models(needed, reward_model is not None, lora > 0),
                "fits": [name for name, size in GPUS.items() if total <= USABLE * size * GIB],
            }
        )
    grpo, ppo = (row["total"] for row in rows)
    return {"parameters": shape.parameters, "rows": rows, "saved": 1 - grpo / ppo, "count": count}


def largest(query: Query) -> dict[str, Any]:
    """The largest typical model, in steps of 0.1 billion, that fits on a GPU with GRPO and with PPO."""
    card = word(query, "card", "h200", list(GPUS))
    work, precision = _work(query), PRECISIONS[word(query, "dtype", "bfloat16", list(PRECISIONS))]
    lora, room = whole(query, "lora", 0, 0, 256), USABLE * GPUS[card] * GIB

    def fits(tenths: int, needed: Needs) -> bool:
        shape = typical_shape(f"{tenths / 10:g}B")
        return memory_of(shape, work, needed, precision, on_gpu=True, lora=lora).peak <= room

    found = {}
    for algorithm in ("grpo", "ppo"):
        needed = _needs(query, algorithm)
        # Memory grows with size, apart from rounding to whole layers and heads.
        least, most = 0, 5000
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if fits(middle, needed) else (least, middle)
        found[algorithm] = least / 10
    return {"card": card, "bytes": GPUS[card] * GIB, "usable": round(room), "largest": found}


def _weights_only(components: Mapping[str, int], needed: Needs) -> dict[str, int]:
    """A common estimate: the weights of all models. A critic has those of the policy."""
    kept = {name: components[name] for name in ("weights", "reference", "reward model") if name in components}
    return {**kept, "critic": components["weights"] * needed.critic}


def models(needed: Needs, reward_model: bool, lora: bool) -> list[dict[str, Any]]:
    """The models in memory, and which are trainable. With LoRA the reference is the policy without its adapter."""
    return [
        {"name": "policy", "there": True, "trainable": True},
        {"name": "reference", "there": needed.reference and not lora, "trainable": False},
        {"name": "critic", "there": needed.critic, "trainable": needed.critic},
        {"name": "reward model", "there": reward_model, "trainable": False},
    ]


def accounting(query: Query) -> dict[str, Any]:
    """Bytes per parameter, frozen and trainable, by precision."""
    rows = []
    for dtype, precision in PRECISIONS.items():
        roles = {"weights": precision.weights, "gradients": precision.gradients, "optimizer": precision.optimizer}
        rows.append({"dtype": dtype, **roles, "frozen": precision.weights, "trainable": sum(roles.values())})
    billion = typical_shape("1B").parameters
    return {"rows": rows, "billion": billion}


def compute(query: Query) -> dict[str, Any]:
    """FLOPs of a step by phase. PPO with `ppo_g` completions per prompt, GRPO with `g`."""
    shape, work = _shape(query), _work(query)
    ppo_work = replace(work, group_size=whole(query, "ppo_g", 1, 1, 64))
    rows: list[dict[str, Any]] = []
    for algorithm, own in (("grpo", work), ("ppo", ppo_work), ("ppo, as many completions", work)):
        needed = _needs(query, algorithm.partition(",")[0])
        phases = flops(shape, own, needed)
        rows.append(
            {"algorithm": algorithm, "completions": own.completions, "phases": phases, "all": sum(phases.values())}
        )
    return {"rows": rows, "per_prompt": rows[0]["all"] / rows[1]["all"], "alike": rows[0]["all"] / rows[2]["all"]}


def group_costs(query: Query) -> list[dict[str, Any]]:
    """The same prompts with groups of 2, 8, 16 and 64."""
    shape, work = _shape(query), _work(query)
    needed, precision = _needs(query, "grpo"), PRECISIONS["bfloat16"]
    rows = []
    for size in (2, 8, 16, 64):
        own = replace(work, group_size=size)
        phases = flops(shape, own, needed)
        found = memory_of(shape, own, needed, precision, on_gpu=True)
        rows.append({"g": size, "rollout": phases["rollout"], "all": sum(phases.values()), "peak": found.peak})
    return rows


def measured(query: Query) -> dict[str, Any]:
    """The planner's predictions next to peaks measured on a GPU."""
    about = json.loads(MEASURED.read_text())
    work = Work(**about["work"])
    rows = []
    for row in about["rows"]:
        needed = needs(PRESETS[row["algorithm"]].settings)
        precision = PRECISIONS[row["dtype"]]
        found = memory_of(find_shape(row["shape"]), work, needed, precision, on_gpu=True, stock=about["stock"])
        rows.append({**row, "predicted": found.peak, "ratio": found.peak / row["measured"]})
    return {**about, "rows": rows}


def critics(query: Query) -> list[dict[str, Any]]:
    """No critic, one that shares the policy network, and a separate one."""
    shape, work, precision = _shape(query), _work(query), PRECISIONS["bfloat16"]
    rows = []
    for label, critic in (("none", False), ("shares the policy network", False), ("a separate network", True)):
        needed = Needs(reference=False, critic=critic)
        found = memory_of(shape, work, needed, precision, on_gpu=True)
        rows.append({"critic": label, "peak": found.peak, "flops": sum(flops(shape, work, needed).values())})
    return rows


def small_and_large_critics(query: Query) -> list[dict[str, Any]]:
    """Memory of a small critic as in robotics and of a language-model critic: weights, gradients and moments."""
    precision = PRECISIONS["float32"]
    per_parameter = precision.weights + precision.gradients + precision.optimizer
    mlp = 64 * 256 + 256 + 256 * 256 + 256 + 256 + 1
    sizes = [("two layers of 256 over 64 sensor values", mlp)]
    sizes += [(f"a typical {size} model", typical_shape(size).parameters) for size in ("7B", "70B")]
    return [{"critic": label, "parameters": count, "bytes": per_parameter * count} for label, count in sizes]
