"""The number of ranks changes no token and no reward, and gradients only by rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config import Critic, Evaluation, Lora, Loss, Optimizer, Scale
from grpo.config.presets import PRESETS
from helpers.rank_runs import assert_same_run, metrics_of, short, trained
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
    "process credit": {"algorithm": "dr_grpo", "loss": Loss(credit="process"), "scale": SHARDED},
}


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_ranks_changes_no_token_and_no_reward(case: str, tmp_path: Path) -> None:
    for size in (1, 2, 3, 4):
        checksums = ranks(size, trained, short(tmp_path, f"on-{size}", **CASES[case]))
        assert checksums == [checksums[0]] * size, "weights are bit-identical on all ranks"
    for size in (2, 3, 4):
        assert_same_run(tmp_path / f"on-{size}", tmp_path / "on-1")
    metrics = metrics_of(tmp_path / "on-1")
    if case == "dapo":
        assert sum(metrics[step, "groups_drawn"] for step in range(6)) > 6 * 5, "groups were replaced"
