"""A recorded step under other settings: the same completions, other advantages and weights, by `grpo.core`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from grpo.algorithms import PRESETS, load_surrogate
from grpo.core import denominator, group_advantages, policy_loss, reward_statistics
from grpo.errors import GrpoError
from grpo.lab.tokens import Traced, loss_settings
from grpo.store import Run

CHOICES = {
    "baseline": ("mean", "leave_one_out", "batch", "length_weighted"),
    "scale": ("group_std", "batch_std", "none"),
    "ratio": ("token", "sequence"),
    "aggregate": ("sequence", "token", "constant"),
    "kl": ("k1", "k2", "k3"),
}
NUMBERS = {"clip_low": (0.0, 1.0), "clip_high": (0.0, 100.0), "beta": (0.0, 100.0)}


@dataclass(frozen=True)
class Settings:
    """What can be asked otherwise: the loss section's fields, and a weight for each part of the reward."""

    loss: dict[str, Any]
    weights: dict[str, float] = field(default_factory=dict)


def asked(run: Run, query: Mapping[str, str]) -> Settings:
    """The run's own settings, changed as the query says; `weight.PART=0.5` weighs a part of the reward."""
    loss, weights = dict(run.config["loss"]), {}
    for name, text in query.items():
        if name in CHOICES:
            if text not in CHOICES[name]:
                raise GrpoError(f"{name}: no choice {text[:40]!r}; there are {', '.join(CHOICES[name])}")
            loss[name] = text
        elif name in NUMBERS:
            loss[name] = _number(name, text, *NUMBERS[name])
        elif name.startswith("weight."):
            weights[name.removeprefix("weight.")] = _number(name, text, -100.0, 100.0)
    return Settings(loss, weights)


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise GrpoError(f"{name}: {text[:40]!r} is no number") from None
    if not low <= value <= high:
        raise GrpoError(f"{name}: {text[:40]} is not between {low:g} and {high:g}")
    return value


def what_if(run: Run, step: int, query: Mapping[str, str]) -> dict[str, Any]:
    """Each completion's advantage as recorded and as it would be, and what that does to the step."""
    groups = run.completions(step)
    if not groups:
        raise GrpoError(f"step {step} has no recorded groups")
    if run.config["loss"]["baseline"] == "value":
        raise GrpoError("what if compares the completions of a group; this run's advantages come from a critic")
    settings, as_run = asked(run, query), Settings(dict(run.config["loss"]))
    now, before = _Step(run, groups, settings), _Step(run, groups, as_run)
    rows = []
    for index, group in enumerate(groups):
        completions = [
            {
                "sample": done["sample_index"],
                "text": done["text"][:400],
                "recorded": {"reward": done["reward"], "advantage": done["advantage"]},
                "reward": now.reward(index, place),
                "advantage": now.advantages_PG[index, place].item(),
                "weight": now.weights_PG[index, place].item(),
                "weight_before": before.weights_PG[index, place].item(),
            }
            for place, done in enumerate(group["completions"])
        ]
        rows.append({"index": index, "prompt": group["prompt"][:300], "completions": completions})
    return {
        "step": step,
        "settings": settings.loss,
        "weights": settings.weights,
        "recorded_settings": as_run.loss,
        "parts": sorted({part for group in groups for done in group["completions"] for part in done["parts"]}),
        "presets": {name: asdict(preset.settings) for name, preset in PRESETS.items()},
        "choices": CHOICES,
        "statistics": {"before": before.statistics(), "now": now.statistics()},
        "traced": {"before": _traced(run, step, before), "now": _traced(run, step, now)},
        "groups": rows,
    }


def policy_settings(loss: Mapping[str, Any]) -> dict[str, Any]:
    """As `policy_loss` takes them, people's own surrogate loaded."""
    return {**loss_settings(loss), "surrogate": load_surrogate(loss.get("surrogate", "clip"))}


class _Step:
    """The step's rewards, advantages and per-token weights under some settings."""

    def __init__(self, run: Run, groups: list[dict[str, Any]], settings: Settings):
        self.settings = settings
        size = max(len(group["completions"]) for group in groups)
        nothing: dict[str, Any] = {"reward": None, "parts": {}, "length": 0}
        rows = [[*group["completions"], *[nothing] * (size - len(group["completions"]))] for group in groups]
        self.rewards_PG = torch.tensor([[self._weighed(done) for done in row] for row in rows], dtype=torch.float64)
        self.lengths_PG = torch.tensor([[done["length"] for done in row] for row in rows])
        self.valid_PG = ~self.rewards_PG.isnan()
        loss = settings.loss
        self.advantages_PG = group_advantages(
            self.rewards_PG, self.valid_PG, self.lengths_PG, baseline=loss["baseline"], scale=loss["scale"]
        )
        lengths_N = self.lengths_PG[self.valid_PG]
        self.denominator = denominator(lengths_N, loss["aggregate"], run.config["max_new_tokens"])
        self.weights_PG = self._push()

    def _weighed(self, done: Mapping[str, Any]) -> float:
        if done["reward"] is None:
            return float("nan")
        if not self.settings.weights:
            return float(done["reward"])
        applying = {part: value for part, value in done["parts"].items() if value is not None}
        return sum(self.settings.weights.get(part, 1.0) * value for part, value in applying.items())

    def _push(self) -> torch.Tensor:
        """−∂loss/∂logp of each token at ratio 1, the same for all tokens of a completion: its gradient by autograd."""
        lengths_N = self.lengths_PG.flatten()
        mask_NL = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
        logp_NL = torch.zeros(mask_NL.shape, dtype=torch.float64, requires_grad=True)
        settings = {**policy_settings(self.settings.loss), "beta": 0.0}
        advantages_N = self.advantages_PG.flatten()
        loss, _ = policy_loss(
            logp_NL, logp_NL.detach(), advantages_N, mask_NL, denominator=self.denominator, **settings
        )
        [gradient_NL] = torch.autograd.grad(loss, logp_NL)
        return (0.0 - gradient_NL[:, 0]).reshape(self.advantages_PG.shape)

    def reward(self, group: int, place: int) -> float | None:
        return self.rewards_PG[group, place].item() if self.valid_PG[group, place] else None

    def statistics(self) -> dict[str, float]:
        rewards_PG = self.rewards_PG.masked_fill(~self.valid_PG, 0.0)
        found = reward_statistics(rewards_PG, self.advantages_PG, self.valid_PG)
        carried = self.lengths_PG[(self.advantages_PG != 0) & self.valid_PG].sum()
        return found | {"gradient_tokens": float(carried) / max(1, int(self.lengths_PG[self.valid_PG].sum()))}


def _traced(run: Run, step: int, under: _Step) -> dict[str, float] | None:
    """Loss, clipping and KL over the tokens that were recorded, by `policy_loss`; None where there are none."""
    rows = [row for row in run.token_arrays(step) if row["trainer_logprobs"] is not None]
    if not rows:
        return None
    total = None
    for row in rows:
        traced = Traced(row, under.settings.loss)
        settings = {**traced.settings, "surrogate": traced.inputs["surrogate"]}
        advantage = under.advantages_PG[row["group_index"], row["sample_index"]].reshape(1)
        mask_1L = torch.ones(1, len(traced.logp_L), dtype=torch.bool)
        ref_1L = None if traced.ref_L is None else traced.ref_L[None]
        inputs = (traced.logp_L[None], traced.old_L[None], advantage, mask_1L)
        _, statistics = policy_loss(*inputs, denominator=under.denominator, ref_logp=ref_1L, **settings)
        total = statistics if total is None else total + statistics
    assert total is not None
    return total.metrics()
