"""`trainer_state`, as TRL passes it to reward functions. Importing transformers for its class would take a worker
seconds, so this one has the same attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.config import Config
from grpo.distributed.world import ALONE, World


@dataclass(frozen=True)
class TrainerState:
    """The attributes of transformers' TrainerState. A step is a batch.

    >>> state = TrainerState.of(Config(steps=120, prompts_per_step=16), training_rows=640).at(60)
    >>> state.global_step, state.max_steps, state.epoch, state.num_train_epochs
    (60, 120, 1.5, 3)
    >>> TrainerState.of(Config(steps=120)).at(60).epoch  # problems without end: the run is one epoch
    0.5
    """

    epoch: float = 0.0
    global_step: int = 0
    """Training steps before this one; in an evaluation, those before it."""
    max_steps: int = 0
    logging_steps: int = 1
    eval_steps: int = 0
    save_steps: int = 0
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)
    steps_per_epoch: float = 0.0

    @classmethod
    def of(cls, config: Config, training_rows: int = 0, world: World = ALONE) -> TrainerState:
        """At the start of a run. `training_rows` is 0 for a task that makes problems without end."""
        per_epoch = training_rows / config.prompts_per_step if training_rows else float(config.steps)
        return cls(
            max_steps=config.steps,
            eval_steps=config.evaluation.every,
            save_steps=config.checkpoint_every,
            train_batch_size=config.prompts_per_step * config.group_size,
            num_train_epochs=math.ceil(config.steps / per_epoch),
            steps_per_epoch=per_epoch,
            is_local_process_zero=world.local_rank == 0,
            is_world_process_zero=world.first,
        )

    def at(self, step: int) -> TrainerState:
        return replace(self, global_step=step, epoch=step / self.steps_per_epoch if self.steps_per_epoch else 0.0)
