"""The number of ranks changes no token and no reward, and gradients only by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo.config import Critic, Episodes, Evaluation, Lora, Loss, Optimizer, Scale
from grpo.config.presets import PRESETS
from grpo.distributed.world import World
from helpers.rank_runs import AsksAgain, Direct, assert_same_run, metrics_of, short, trained
from helpers.ranks import ranks

FOUR_UPDATES = Optimizer(epochs=2, minibatches=2, warmup_steps=0)
SHARDED = Scale(shard="optimizer")
CASES: dict[str, dict[str, Any]] = {
    **{preset: {"algorithm": preset} for preset in PRESETS},
    "grpo": {"algorithm": "grpo", "loss": Loss(beta=0.1, refresh=2)},
    "dr_grpo": {"algorithm": "dr_grpo", "evaluation": Evaluation(every=3, problems=3, probes=1)},
    "gspo": {"algorithm": "gspo", "optimizer": FOUR_UPDATES},
    "cispo": {"algorithm": "cispo", "optimizer": FOUR_UPDATES, "scale": SHARDED},
    "sapo": {"algorithm": "sapo", "optimizer": FOUR_UPDATES},
    "reinforce": {"algorithm": "reinforce", "loss": Loss(entropy=0.01), "scale": SHARDED},
    "ppo": {"algorithm": "ppo", "critic": Critic(warmup_steps=2)},
    "ppo, shared critic": {"algorithm": "ppo", "critic": Critic(model="shared", warmup_steps=2), "scale": SHARDED},
    "adapters": {"algorithm": "grpo", "lora": Lora(rank=4), "optimizer": FOUR_UPDATES},
    "episodes": {"algorithm": "dr_grpo", "max_new_tokens": 16, "lr": 1e-6},
    "environment": {
        "algorithm": "dr_grpo",
        "max_new_tokens": 16,
        "lr": 1e-7,
        "task": "env",
        "episodes": Episodes(env="helpers.environments:Sums"),
        "reward": "helpers.environments:half",
    },
    "process credit": {"algorithm": "dr_grpo", "loss": Loss(credit="process"), "scale": SHARDED},
}


def train_each(world: World, folder: Path, cases: Sequence[str]) -> dict[str, list[int]]:
    tasks = {"episodes": AsksAgain, "environment": None}
    return {
        case: trained(world, short(folder, name_of(case, world.size), **CASES[case]), tasks.get(case, Direct))
        for case in cases
    }


def name_of(case: str, size: int) -> str:
    return f"{list(CASES).index(case)}-on-{size}"


@pytest.mark.parametrize(
    ("cases", "sizes"),
    [(list(CASES)[::2], (2, 3)), (list(CASES)[1::2], (3, 4))],
    ids=["on 2 and 3 ranks", "on 3 and 4 ranks"],
)
def test_the_number_of_ranks_changes_no_token_and_no_reward(
    cases: Sequence[str], sizes: Sequence[int], tmp_path: Path
) -> None:
    """Many cases by the same ranks: a process is slow the first time. All run on 1 and 3 ranks, where shares of the 5
    prompts differ; half of them also on 2, and the others on 4."""
    for size in (1, *sizes):
        first, *others = ranks(size, train_each, tmp_path, cases)
        assert others == [first] * (size - 1), "weights are bit-identical on all ranks"
    for case in cases:
        for size in sizes:
            assert_same_run(tmp_path / name_of(case, size), tmp_path / name_of(case, 1))
    for case in {"episodes", "environment"} & set(cases):
        metrics = metrics_of(tmp_path / name_of(case, 3))
        assert all((metrics[step, "turns_mean"] or 0) > 1 for step in range(6))
    if "dapo" in cases:
        metrics = metrics_of(tmp_path / name_of("dapo", 3))
        assert sum(metrics[step, "groups_drawn"] for step in range(6)) > 6 * 5, "groups were replaced"
