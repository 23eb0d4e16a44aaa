"""What a single setting may be. What several may not be together: contradictions.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limit:
    """A rule for one value, and how it reads after "must be"."""

    words: str
    holds: Callable[[Any], bool]


ZERO_OR_MORE = Limit("0 or more", lambda value: value >= 0)

_SETTINGS: Mapping[Limit, str] = {
    Limit("given, not empty", bool): "model system.device system.runs",
    Limit("at least 1", lambda value: value >= 1): """
        steps prompts_per_step group_size max_new_tokens batch_size loss.refill loss.correction_cap checkpoints.keep
        optimizer.epochs optimizer.minibatches evaluation.problems""",
    ZERO_OR_MORE: """
        seed checkpoint_every warmup_steps weight_decay loss.beta loss.refresh loss.entropy lora.rank
        critic.warmup_steps critic.clip critic.weight optimizer.warmup_steps optimizer.weight_decay
        evaluation.every evaluation.probes scoring.workers scoring.judge_retries scoring.judge_budget
        system.threads system.rows_at_once system.token_budget system.token_groups""",
    Limit("above 0", lambda value: value > 0): """
        lr temperature epochs grad_clip loss.clip_high loss.gate_up loss.gate_down lora.alpha critic.lr
        optimizer.grad_clip scoring.seconds scoring.memory_gb scoring.judge_seconds""",
    Limit("above 0 and at most 1", lambda value: 0 < value <= 1): "loss.clip_low",
    Limit("above 0 and below 1", lambda value: 0 < value < 1): "dataset.heldout_share",
    Limit("0 or more and below 1", lambda value: 0 <= value < 1): "optimizer.adam_beta1 optimizer.adam_beta2",
    Limit("0 or more and at most 1", lambda value: 0 <= value <= 1): "loss.overlong scoring.most_failures",
    Limit("between 0 and 1", lambda value: 0 <= value <= 1): "critic.gamma critic.lam",
    Limit("above 1, or 0 for none", lambda value: value == 0 or value > 1): "loss.cap",
}

LIMITS: Mapping[str, Limit] = {path: limit for limit, paths in _SETTINGS.items() for path in paths.split()}
"""By the path of the setting; those of `grpo train` and `grpo sft` alike."""
