"""Training on several GPUs by the planner: memory by mode, collectives, scaling."""

from __future__ import annotations

from typing import Any

from grpo.config.presets import PRESETS
from grpo.lab.chapters.query import Query, whole, word
from grpo.model.plan import PRECISIONS, USABLE, Work, needs
from grpo.model.plan.gpus import GIB, GPUS
from grpo.model.plan.links import LINKS, Cluster
from grpo.model.plan.scaling import Run, assumptions, scaled
from grpo.model.plan.shape import SHAPES
from grpo.model.plan.shard import SHARDS

HELD = ("weights", "gradients", "optimizer", "reference", "working copies", "keys/values")
"""Components that exist at the peak, which is in an update or while gradients are reduced."""


def scale(query: Query) -> dict[str, Any]:
    """GRPO in mixed precision on `gpus` GPUs of each of `nodes` hosts."""
    shape, gpu = SHAPES[word(query, "model", "qwen2.5-7b", list(SHAPES))], word(query, "gpu", "h200", list(GPUS))
    inside, between = ([name for name, link in LINKS.items() if link.between_nodes == outer] for outer in (False, True))
    cluster = Cluster(
        gpus=whole(query, "gpus", 8, 2, 1024),
        nodes=whole(query, "nodes", 1, 1, 1024),
        inside=word(query, "inside", inside[0], inside),
        between=word(query, "between", between[0], between),
    )
    work = Work(prompts=whole(query, "prompts", 64, 1, 4096), group_size=8, prompt_tokens=256, new_tokens=1024)
    run = Run(
        shape=shape,
        work=work,
        needs=needs(PRESETS["grpo"].settings),
        precision=PRECISIONS["mixed"],
        gpu=gpu,
        shard=word(query, "shard", "auto", ["auto", *SHARDS]),  # type: ignore[arg-type]
    )
    found = scaled(run, cluster)
    for mode in found["modes"].values():
        held = {name: mode["memory"][name] for name in HELD}
        mode["parts"] = {**held, "activations and buffers": mode["peak"] - sum(held.values())}
    return {
        **found,
        "cluster": assumptions(cluster, gpu),
        "parameters": shape.parameters,
        "usable": round(USABLE * GPUS[gpu] * GIB),
        "names": dict(SHARDS),
    }
