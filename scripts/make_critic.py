"""Trains the critics that the lab's chapter on credit shows: values of the embedded model `nano`, token by token.

    python scripts/make_critic.py        about two minutes on one CPU core

PPO runs in which only the critic learns: its warm-up lasts as long as the run. One critic ships with its weights. Of
another, trained as a PPO run trains it, the predictions after a few steps are recorded. The weights are the
same bit for bit on one machine; other vector instructions round differently (measured after 40 steps: by up to 1.2e-7).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import save_file

import grpo
from grpo.config import Config, Critic, Evaluation, Optimizer, System
from grpo.config.presets import PRESETS
from grpo.config.schema import resolve
from grpo.lab.chapters.attribution import SIZE
from grpo.lab.chapters.bootstrapping import LEARNING, PROMPT, SEED
from grpo.lab.chapters.nano import CRITIC, LONGEST, nano, sampled, sum_of_three
from grpo.model.critic import make_critic
from grpo.record.checkpoints import Checkpoints
from grpo.training.annotations import annotate
from grpo.types import Group

STEPS = 200
SEEN = (0, 1, 2, 5, 10, 20, 40, 80)
"""Steps after which the second critic's predictions are recorded."""
PROBLEMS, RESTARTS = 32, 256


def trained(folder: str, steps: int, settings: Critic, **changes: Any) -> tuple[Mapping[str, torch.Tensor], float]:
    """The critic's tensors after `steps` steps, and its explained variance over the last 20."""
    config = Config(
        model="nano",
        algorithm="ppo",
        steps=steps,
        max_new_tokens=LONGEST,
        checkpoint_every=0,
        # No KL penalty: a value is the expected reward still to come.
        loss=replace(PRESETS["ppo"].settings, beta=0.0),
        critic=replace(settings, warmup_steps=steps),
        evaluation=Evaluation(every=0, problems=16, probes=0),
        system=System(runs=folder, threads=1, device="cpu", quiet=True),
        **changes,
    )
    with grpo.train(config) as run:
        explained = [value for _, value in run.series("explained_variance")][-20:]
        checkpoint = Checkpoints(run.path).newest_whole(print)
        assert checkpoint is not None
        return dict(checkpoint.tensors("critic")), fmean(explained)


def ship(folder: str) -> None:
    tensors, explained = trained(
        folder, STEPS, Critic(lr=1e-3, lam=1.0), prompts_per_step=32, optimizer=Optimizer(schedule="cosine")
    )
    save_file({name: tensor for name, tensor in tensors.items() if name.count("/") == 1}, CRITIC)
    size = Path(CRITIC).stat().st_size
    print(f"{CRITIC}: {size:,} bytes; explained variance {explained:.2f} over the last 20 steps")


def record(folder: str) -> None:
    """Predictions after `SEEN` steps, before the first token of some problems and before every token of one group."""
    config = resolve(Config(model="nano", algorithm="ppo"))
    with nano() as loaded:
        problems = loaded.task.heldout()[:PROBLEMS]
        groups = sampled(problems, SIZE, seed=SEED)
        many = sampled(problems, RESTARTS, seed=SEED + 1)
        example = sampled([sum_of_three(PROMPT)], SIZE, seed=SEED)
        rows = []
        for steps in SEEN:
            critic = make_critic(config, loaded.policy)
            if steps:
                # As chapter 7's PPO run; a constant learning rate, so that a longer run begins alike.
                tensors, _ = trained(folder, steps, Critic(lr=1e-3), optimizer=Optimizer(schedule="constant"))
                critic.restore(tensors)
            seen: list[Group] = annotate(
                [*example, *groups],
                critic.values,
                "values",
                policy=loaded.policy,
                token_budget=config.system.token_budget,
            )
            tokens, *starts = [[_short(done.values) for done in group.completions] for group in seen]
            rows.append({"steps": steps, "tokens": tokens, "problems": [values[0][0] for values in starts]})
    kept = {
        "answers_per_step": config.prompts_per_step * config.group_size,
        "restarts": RESTARTS,
        "problems": [
            {"prompt": few.problem.prompt, "true": _mean_reward(all_), "group": _mean_reward(few)}
            for few, all_ in zip(groups, many, strict=True)
        ],
        "critic": rows,
    }
    LEARNING.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    print(f"{LEARNING}: {LEARNING.stat().st_size:,} bytes")


def _short(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def _mean_reward(group: Group) -> float:
    return fmean(done.reward or 0.0 for done in group.completions)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ship(folder)
        record(folder)


if __name__ == "__main__":
    main()
