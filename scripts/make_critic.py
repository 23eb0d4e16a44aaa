"""Trains the critic that the lab's chapter on credit shows: values of the embedded model `nano`, token by token.

    python scripts/make_critic.py        about a minute on one CPU core

A PPO run in which only the critic learns: its warm-up lasts as long as the run.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

import grpo
from grpo.config import Config, Critic, Evaluation, Optimizer, System
from grpo.config.presets import PRESETS
from grpo.lab.chapters.nano import CRITIC, LONGEST
from grpo.record.checkpoints import Checkpoints

STEPS = 200


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            model="nano",
            algorithm="ppo",
            steps=STEPS,
            prompts_per_step=32,
            max_new_tokens=LONGEST,
            checkpoint_every=0,
            # No KL penalty: a value is the expected reward still to come.
            loss=replace(PRESETS["ppo"].settings, beta=0.0),
            critic=Critic(lr=1e-3, lam=1.0, warmup_steps=STEPS),
            optimizer=Optimizer(schedule="cosine"),
            evaluation=Evaluation(every=0, problems=16, probes=0),
            system=System(runs=folder, threads=1, device="cpu", quiet=True),
        )
        with grpo.train(config) as run:
            explained = [value for _, value in run.series("explained_variance")][-20:]
            checkpoint = Checkpoints(run.path).newest_whole(print)
        assert checkpoint is not None
        kept = {name: t for name, t in checkpoint.tensors("critic").items() if name.count("/") == 1}
    save_file(kept, CRITIC)
    size = Path(CRITIC).stat().st_size
    print(f"{CRITIC}: {size:,} bytes; explained variance {sum(explained) / len(explained):.2f} over the last 20 steps")


if __name__ == "__main__":
    main()
