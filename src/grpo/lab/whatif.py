"""A recorded step with other settings: advantages of the same completions, recomputed by `training.credit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

import numpy as np
import torch

from grpo.config import Config, Episodes
from grpo.config.leaf import leaves
from grpo.config.presets import PRESETS, SURROGATES, load_surrogate
from grpo.config.sections import Loss
from grpo.core import denominator, policy_loss, reward_statistics
from grpo.errors import GrpoError
from grpo.lab.chapters.query import number, word
from grpo.lab.tokens import Traced, loss_settings
from grpo.record.store import Run
from grpo.training.credit import credit, named_weights, shaped_reward
from grpo.types import Completion, Group, Observation, Problem

CHOICES: dict[str, tuple[str, ...]] = {
    "baseline": ("mean", "leave_one_out", "batch", "length_weighted"),
    "surrogate": SURROGATES,
    **{name: get_args(leaves(Loss)[name].kind) for name in ("scale", "ratio", "aggregate", "kl", "kl_in")},
}
"""Allowed values of each setting; a critic's values are not recorded, so `value` is not allowed."""
NUMBERS = {
    "clip_low": (0.0, 1.0),
    "clip_high": (0.0, 100.0),
    "cap": (0.0, 100.0),
    "gate_up": (0.01, 100.0),
    "gate_down": (0.01, 100.0),
    "beta": (0.0, 100.0),
    "overlong": (0.0, 1.0),
    "turn_weight": (0.0, 100.0),
    "turn_gamma": (0.0, 1.0),
}


def changed_loss(loss: Loss, query: Mapping[str, str]) -> Loss:
    """The run's settings with the query's changes; `weight.PART=0.5` sets the weight of a reward part."""
    changes: dict[str, Any] = {}
    weights = named_weights(loss)
    for name in query:
        if name in CHOICES:
            changes[name] = word(query, name, "", CHOICES[name])
        elif name in NUMBERS:
            changes[name] = number(query, name, 0.0, *NUMBERS[name])
        elif name.startswith("weight."):
            weights[name.removeprefix("weight.")] = number(query, name, 0.0, -100.0, 100.0)
    found = replace(loss, **changes, weights=",".join(f"{part}={weight!r}" for part, weight in weights.items()))
    if (found.kl, found.kl_in) == ("k3_ratio", "reward"):
        raise GrpoError("kl: k3_ratio needs a ratio, which only the loss has; with kl_in reward choose k1, k2 or k3")
    if found.turn_weight and (found.baseline != "mean" or found.scale == "batch_std"):
        raise GrpoError("turn_weight: compares turns with the mean of their group; set it to 0 for other comparisons")
    return found


def what_if(run: Run, step: int, query: Mapping[str, str]) -> dict[str, Any]:
    """Each completion's recorded and recomputed advantage, and the statistics of the step."""
    recorded = run.groups(step)
    if not recorded:
        raise GrpoError(f"step {step} has no recorded groups")
    tokens = run.token_arrays(step)
    groups = _groups(recorded, tokens)
    as_run = Loss(**run.config["loss"])
    loss = changed_loss(as_run, query)
    parts = sorted({part for group in recorded for done in group["completions"] for part in done["parts"]})
    asked = {name.removeprefix("weight.") for name in query if name.startswith("weight.")}
    if unknown := asked - {*parts, *named_weights(as_run)}:
        raise GrpoError(f"weight: unknown part {min(unknown)!r}; the step has {', '.join(parts)}")
    limit = run.config["max_new_tokens"]
    reward, episodes = run.config.get("reward", ""), Episodes(env=run.config.get("episodes", {}).get("env", ""))
    now, before = (
        Credited(groups, Config(loss=each, max_new_tokens=limit, reward=reward, episodes=episodes))
        for each in (loss, as_run)
    )
    rows = []
    for index, group in enumerate(recorded):
        completions = [
            {
                "sample": done["sample_index"],
                "text": "\n".join(turn["text"] for turn in done["turns"])[:400] or done["text"][:400],
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
        "settings": asdict(loss),
        "weights": named_weights(loss),
        "recorded_settings": asdict(as_run),
        "recorded_weights": named_weights(as_run),
        "notes": list(dict.fromkeys([*before.notes(), *now.notes()])),
        "parts": parts,
        "presets": {
            name: asdict(preset.settings)
            for name, preset in PRESETS.items()
            if preset.settings.baseline in CHOICES["baseline"]
        },
        "choices": CHOICES,
        "statistics": {"before": before.statistics(), "now": now.statistics()},
        "traced": {"before": before.traced(tokens), "now": now.traced(tokens)},
        "groups": rows,
    }


def _groups(recorded: Sequence[Mapping[str, Any]], tokens: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The recorded groups as trainer types; tokens that were not recorded are zeros."""
    arrays = {(row["group_index"], row["sample_index"]): row for row in tokens}

    def completion(done: Mapping[str, Any]) -> Completion:
        length = done["length"]
        row = arrays.get((done["group_index"], done["sample_index"]), {})
        kept = {name: array.copy() for name, array in row.items() if isinstance(array, np.ndarray)}  # torch writes
        return Completion(
            text=done["text"],
            tokens=kept.get("tokens", np.zeros(length, np.int64)),
            logprobs=kept.get("logprobs", np.zeros(length, np.float32)),
            finish=done["finish"],
            parts=done["parts"],
            reward=done["reward"],
            turns=tuple(turn["text"] for turn in done["turns"] if turn["who"] == "model"),
            observations=tuple(
                Observation(turn["after"], np.zeros(turn["tokens"], np.int64), turn["text"])
                for turn in done["turns"]
                if turn["who"] != "model"
            ),
            steps=tuple(
                (turn["after"] + turn["tokens"] - 1, turn["reward"])
                for turn in done["turns"]
                if turn["reward"] is not None
            ),
            ref_logprobs=kept.get("ref_logprobs"),
            old_logprobs=kept.get("old_logprobs"),
            advantages=np.full(length, done["advantage"] or 0.0, np.float32),
        )

    return [
        Group(
            Problem(group["problem_id"], group["prompt"], group["answer"]),
            np.zeros(0, np.int64),
            tuple(completion(done) for done in group["completions"]),
            group["policy_version"],
        )
        for group in recorded
    ]


class Credited:
    """Advantages and per-token weights of the step with given settings."""

    def __init__(self, groups: Sequence[Group], config: Config):
        loss = config.loss
        completions = [done for group in groups for done in group.completions]
        self.takes_kl = bool(loss.beta) and loss.kl_in == "reward"
        self.knows_kl = all(done.ref_logprobs is not None for done in completions)
        if self.takes_kl and not self.knows_kl:
            config = replace(config, loss=replace(loss, beta=0.0))
        self.loss = loss
        self.again = loss.baseline != "value" and loss.credit == "outcome"
        self.groups = credit(groups, config)[0] if self.again else groups
        self.shape = (len(groups), -1)
        means = [float(done.advantages.mean()) for group in self.groups for done in group.completions]  # type: ignore[union-attr]
        self.advantages_PG = torch.tensor(means, dtype=torch.float64).reshape(self.shape)
        rewards = [shaped_reward(done, config) for done in completions]
        self.rewards_PG = torch.tensor(rewards, dtype=torch.float64).reshape(self.shape)
        self.valid_PG = ~self.rewards_PG.isnan()
        self.lengths_PG = torch.tensor([len(done) for done in completions]).reshape(self.shape)
        left_out = [loss.mask_truncated and done.truncated for done in completions]
        self.counts_PG = self.valid_PG & ~torch.tensor(left_out).reshape(self.shape)
        self.denominator = denominator(self.lengths_PG[self.valid_PG], loss.aggregate, config.max_new_tokens)
        self.weights_PG = self._push()

    def notes(self) -> Iterator[str]:
        """Notes on values that cannot be computed from the record."""
        if not self.again:
            source = "a critic's values" if self.loss.baseline == "value" else "process rewards"
            yield (
                f"Advantages from {source} cannot be recomputed from the record: the recorded advantages are shown, "
                "averaged over each completion."
            )
        elif self.takes_kl and not self.knows_kl:
            yield (
                "The KL penalty in the reward is known only for groups with recorded tokens "
                "(--system.token_groups); it is omitted here."
            )
        if self.loss.parts == "normalise":
            yield "Each reward part is normalised separately within its group: baseline and scale have no effect."
        if self.loss.entropy or self.loss.correction != "none":
            yield "The loss shown does not include the entropy bonus and the sampler correction."

    def _push(self) -> torch.Tensor:
        """−∂loss/∂logp of each token at ratio 1 by autograd; the same for all tokens of a completion."""
        lengths_N = self.lengths_PG.flatten()
        mask_NL = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
        logp_NL = torch.zeros(mask_NL.shape, dtype=torch.float64, requires_grad=True)
        settings = {**loss_settings(asdict(self.loss)), "beta": 0.0, "surrogate": load_surrogate(self.loss.surrogate)}
        advantages_N = self.advantages_PG.masked_fill(~self.counts_PG, 0.0).flatten()
        loss, _ = policy_loss(
            logp_NL, logp_NL.detach(), advantages_N, mask_NL, denominator=self.denominator, **settings
        )
        [gradient_NL] = torch.autograd.grad(loss, logp_NL)
        return (0.0 - gradient_NL[:, 0]).reshape(self.shape)

    def reward(self, group: int, place: int) -> float | None:
        """The weighted sum of the reward's parts, minus the length penalty."""
        return self.rewards_PG[group, place].item() if self.valid_PG[group, place] else None

    def statistics(self) -> dict[str, float]:
        rewards_PG = self.rewards_PG.masked_fill(~self.valid_PG, 0.0)
        found = reward_statistics(rewards_PG, self.advantages_PG, self.valid_PG)
        carried = self.lengths_PG[(self.advantages_PG != 0) & self.counts_PG].sum()
        return found | {"gradient_tokens": float(carried) / max(1, int(self.lengths_PG[self.valid_PG].sum()))}

    def traced(self, tokens: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
        """Loss, clipping and KL over recorded tokens, by `policy_loss`; None if there are none."""
        total = None
        for row in tokens:
            if row["trainer_logprobs"] is None:
                continue
            traced = Traced(row, asdict(self.loss))
            advantages_1L = traced.advantages_L[None]
            if self.again:
                advantages = self.groups[row["group_index"]].completions[row["sample_index"]].advantages
                advantages_1L = torch.as_tensor(advantages, dtype=torch.float64)[None]
            mask_1L = torch.ones(advantages_1L.shape, dtype=torch.bool)
            ref_1L = None if traced.ref_L is None else traced.ref_L[None]
            settings = {**traced.settings, "surrogate": load_surrogate(self.loss.surrogate)}
            inputs = (traced.logp_L[None], traced.old_L[None], advantages_1L, mask_1L)
            _, statistics = policy_loss(*inputs, denominator=self.denominator, ref_logp=ref_1L, **settings)
            total = statistics if total is None else total + statistics
        return None if total is None else total.metrics()
