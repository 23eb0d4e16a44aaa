"""Slurm: a task of `srun` is a rank; its variables are translated into those of torchrun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.config import Scale

FIRST_PORT, PORTS = 20_000, 30_000


def adopt_slurm(scale: Scale) -> None:
    """Make this process a rank where srun has started as many tasks as `scale` has ranks.

    With --gpus 1 and one node every task is a run of its own; with --join every task is the launcher of its host.
    """
    variables = rank_variables(os.environ)
    if not variables or scale.gpus * scale.nodes == 1 or scale.join:
        return
    if int(variables["WORLD_SIZE"]) != scale.gpus * scale.nodes:
        raise GrpoError(
            f"field scale.gpus: {scale.gpus} on each of {scale.nodes} nodes, and srun has started "
            f"{variables['WORLD_SIZE']} tasks; start one task for each GPU, or one for each node and add --join"
        )
    os.environ.update(variables)


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Torchrun's variables for this task; empty where Slurm runs one task, or none. Those that are set stay.

    >>> task = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    >>> task |= {"SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_ID": "61234"}
    >>> " ".join(f"{name}={value}" for name, value in rank_variables(task).items())
    'RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=gpu07 MASTER_PORT=21234'
    """
    # Only srun sets it: a batch script, which starts once, also has SLURM_PROCID and SLURM_NTASKS.
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks == 1 or "RANK" in environment:
        return {}
    counts = _tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    port = FIRST_PORT + sum(int(environment.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")) % PORTS
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(counts[int(environment["SLURM_NODEID"])]),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
    }


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation.

    >>> first_host("gpu[07-08,12]"), first_host("a1,b[2-3]"), first_host("rack[1-2]gpu[3,5]")
    ('gpu07', 'a1', 'rack1gpu3')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else "")


def _tasks_per_node(counts: str) -> list[int]:
    """
    >>> _tasks_per_node("8(x2),4")
    [8, 8, 4]
    """
    pairs = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, times in pairs for _ in range(int(times or 1))]
