"""The specification of a trial: settings for training an embedded model, several seeds each; checked and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo.config import Config
from grpo.config.leaf import Leaf, from_text, leaves, misfit, shown
from grpo.config.models import recipe
from grpo.config.presets import SURROGATES
from grpo.config.schema import parse_train
from grpo.errors import GrpoError
from grpo.record.metrics import is_metric

MOST_ARMS, MOST_SEEDS, MOST_STEPS = 6, 5, 300
MOST_COMPLETIONS = 600_000
"""Limit over all runs, counted once per epoch: about five minutes on one core."""
BASE: dict[str, Any] = {"model": "nano", "lr": 3e-4, "max_new_tokens": 32, "optimizer.warmup_steps": 5}
"""Default settings of an arm, unless its task has a model of its own, with settings that train it."""
BOUNDS: dict[str, tuple[float, float]] = {
    "lr": (1e-6, 0.1),
    "group_size": (1, 64),
    "prompts_per_step": (1, 64),
    "max_new_tokens": (1, 64),
    "temperature": (0.1, 3.0),
    "loss.beta": (0.0, 2.0),
    "loss.clip_low": (0.01, 1.0),
    "loss.clip_high": (0.01, 20.0),
    "loss.cap": (0.0, 100.0),
    "loss.gate_up": (0.05, 20.0),
    "loss.gate_down": (0.05, 20.0),
    "loss.overlong": (0.0, 1.0),
    "loss.dynamic_sampling": (1.0, 4.0),
    "loss.refresh": (0, 200),
    "loss.entropy": (0.0, 0.1),
    "optimizer.epochs": (1, 8),
    "optimizer.minibatches": (1, 8),
    "optimizer.warmup_steps": (0, 100),
    "optimizer.weight_decay": (0.0, 1.0),
    "optimizer.grad_clip": (0.01, 1000.0),
    "critic.lr": (1e-6, 0.1),
    "critic.warmup_steps": (0, 100),
    "critic.gamma": (0.0, 1.0),
    "critic.lam": (0.0, 1.0),
    "critic.clip": (0.0, 10.0),
    "evaluation.every": (0, 200),
}
"""Bounds of the numbers that an arm may set."""
CHOICES: dict[str, Sequence[str]] = {
    "task": ("arithmetic:easy", "arithmetic", "gameable", "gameable:mended", "guess"),
    "loss.surrogate": SURROGATES,
    **dict.fromkeys(
        ("algorithm", "loss.baseline", "loss.scale", "loss.credit", "loss.parts", "loss.ratio", "loss.aggregate"), ()
    ),
    **dict.fromkeys(("loss.kl", "loss.kl_in", "loss.mask_truncated", "optimizer.schedule", "critic.model"), ()),
}
"""Choices that an arm may set; empty: all that the setting allows."""


@dataclass(frozen=True)
class Trial:
    """
    >>> trial = Trial.of({"arms": [{"label": "defaults", "settings": {}}], "seeds": 1, "steps": 2, "metrics": ["kl"]})
    >>> trial.config(0, seed=1, folder=Path("runs")).model
    'nano'
    """

    arms: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    """Label and settings of each arm."""
    seeds: int
    steps: int
    metrics: tuple[str, ...]
    name: str = ""

    @classmethod
    def of(cls, data: Any, rewards: Sequence[str] = ()) -> Trial:
        """A checked trial. `rewards` are the rewards that an arm may name."""
        if not isinstance(data, Mapping):
            raise GrpoError("trial: expected an object with arms, seeds, steps and metrics")
        if unknown := set(data) - {"arms", "seeds", "steps", "metrics", "name"}:
            raise GrpoError(f"trial: unknown field {shown(sorted(map(str, unknown))[0])}")
        arms = data.get("arms")
        if not isinstance(arms, Sequence) or isinstance(arms, str) or not 1 <= len(arms) <= MOST_ARMS:
            raise GrpoError(f"field arms: expected a list of 1 to {MOST_ARMS}")
        trial = cls(
            arms=tuple(_arm(arm, rewards) for arm in arms),
            seeds=_whole(data, "seeds", MOST_SEEDS),
            steps=_whole(data, "steps", MOST_STEPS),
            metrics=_metrics(data.get("metrics")),
            name=str(data.get("name", ""))[:60],
        )
        trial.check_size()
        return trial

    def config(self, arm: int, *, seed: int, folder: Path) -> Config:
        ours = {
            "seed": seed,
            "steps": self.steps,
            "run": f"arm-{arm}-seed-{seed}",
            "checkpoint_every": 0,
            "evaluation.problems": 200,
            "evaluation.probes": 2,
            "system.runs": str(folder),
            "system.device": "cpu",
            "system.threads": 1,
        }
        chosen = dict(self.arms[arm][1])
        settings = {"evaluation.every": 0} | ({} if recipe(chosen) else BASE) | chosen | ours
        return parse_train([word for path, value in settings.items() for word in _flag(path, value)])

    def check_size(self) -> None:
        completions = 0.0
        for arm in range(len(self.arms)):
            config = self.config(arm, seed=1, folder=Path("runs"))
            passes = config.optimizer.epochs * config.loss.dynamic_sampling
            completions += self.seeds * self.steps * config.prompts_per_step * config.group_size * passes
        if completions > MOST_COMPLETIONS:
            raise GrpoError(
                f"trial: {completions:,.0f} completions exceed the limit of {MOST_COMPLETIONS:,}; use fewer seeds"
            )

    def as_json(self) -> dict[str, Any]:
        arms = [{"label": label, "settings": dict(settings)} for label, settings in self.arms]
        return asdict(self) | {"arms": arms, "metrics": list(self.metrics)}


def _flag(path: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        parent, _, name = path.rpartition(".")
        return [f"--{path}" if value else f"--{parent}.no-{name}"]
    return [f"--{path}", str(value)]


def _arm(arm: Any, rewards: Sequence[str]) -> tuple[str, tuple[tuple[str, Any], ...]]:
    if not isinstance(arm, Mapping) or set(arm) != {"label", "settings"} or not isinstance(arm["settings"], Mapping):
        raise GrpoError("field arms: each must be an object with label and settings")
    known = leaves(Config)
    return str(arm["label"])[:60], tuple((p, _value(p, v, known, rewards)) for p, v in arm["settings"].items())


def _value(path: str, value: Any, known: Mapping[str, Leaf], rewards: Sequence[str]) -> Any:
    where = f"field {shown(path)}"
    if path not in BOUNDS and path not in CHOICES and path != "reward":
        raise GrpoError(f"{where}: a trial cannot set it; allowed are {', '.join([*BOUNDS, *CHOICES, 'reward'])}")
    leaf = known[path]
    if isinstance(value, str):
        value = from_text(leaf.kind, value)
    if why := misfit(leaf, value):
        raise GrpoError(f"{where}: {why}")
    if path in BOUNDS:
        low, high = BOUNDS[path]
        if not low <= value <= high:
            raise GrpoError(f"{where}: must be between {low:g} and {high:g} in a trial; got {shown(value)}")
    words = rewards if path == "reward" else CHOICES.get(path, ())
    if (words or path == "reward") and value not in words:
        raise GrpoError(f"{where}: must be one of {', '.join(words) or 'none'} in a trial; got {shown(value)}")
    return value


def _whole(data: Mapping[str, Any], name: str, most: int) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise GrpoError(f"field {name}: expected a whole number from 1 to {most}; got {shown(value)}")
    return value


def _metrics(names: Any) -> tuple[str, ...]:
    if not isinstance(names, Sequence) or isinstance(names, str) or not 1 <= len(names) <= 12:
        raise GrpoError("field metrics: expected a list of 1 to 12 names")
    for name in names:
        if not isinstance(name, str) or not is_metric(name):
            raise GrpoError(f"field metrics: {shown(name)} is not a metric; docs/metrics.md lists them")
    return tuple(names)
