"""Related algorithms: papers and models by date, and the effect of each preset on one small batch."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo.config.presets import PRESETS
from grpo.config.sections import Loss
from grpo.core import denominator, gae, group_advantages, token_terms
from grpo.core.advantage import STD_EPS
from grpo.lab.chapters.query import Query, word
from grpo.lab.tokens import loss_settings

NODES: tuple[dict[str, Any], ...] = tuple(tomllib.loads(Path(__file__).with_name("family.toml").read_text())["node"])

LENGTHS = (3, 3, 6, 12)
REWARDS = (1.0, 0.0, 1.0, 0.0)
OTHER_GROUP = (1.0, 1.0, 1.0, 0.0)
"""A second, easier group of the same step, for statistics over the batch."""
LOG_RATIOS = (0.0, 0.35, -0.35)
"""Changes of log-probability since sampling, in turn: ratios 1, 1.42 and 0.70."""
VALUE = 0.5
"""The value of every token from an untrained critic."""
MAX_NEW_TOKENS = 12


def tree(query: Query) -> list[dict[str, Any]]:
    return [dict(node) for node in NODES]


def preset(query: Query) -> dict[str, Any]:
    """A preset's settings that differ from GRPO's, and its pushes on four completions next to GRPO's."""
    name = word(query, "preset", "grpo", list(PRESETS))
    found = PRESETS[name]
    moved = word(query, "moved", "no", ("no", "yes")) == "yes"
    ours, base = asdict(found.settings), asdict(PRESETS["grpo"].settings)
    return {
        "preset": name,
        "paper": found.paper,
        "differences": found.differences,
        "settings": ours,
        "changed": {key: {"grpo": base[key], "here": ours[key]} for key in ours if ours[key] != base[key]},
        "completions": effect(found.settings, moved),
        "grpo": effect(PRESETS["grpo"].settings, moved),
        "command": f"grpo train --algorithm {name}",
    }


def advantages_of(loss: Loss) -> list[torch.Tensor]:
    """Token advantages of the four completions, with the preset's baseline and scale."""
    if loss.baseline == "value":
        rewards = [torch.zeros(1, length, dtype=torch.float64) for length in LENGTHS]
        for reward, tokens in zip(REWARDS, rewards, strict=True):
            tokens[0, -1] = reward
        found = [gae(tokens, torch.full_like(tokens, VALUE), 1.0, 0.95)[0][0] for tokens in rewards]
        joined = torch.cat(found)
        return [(tokens - joined.mean()) / (joined.std() + STD_EPS) for tokens in found]
    rewards_PG = torch.tensor([REWARDS, OTHER_GROUP], dtype=torch.float64)
    lengths_PG = torch.tensor([LENGTHS, LENGTHS])
    advantages_PG = group_advantages(
        rewards_PG, lengths_PG=lengths_PG, baseline=loss.baseline, scale=loss.scale, std=loss.std, std_eps=loss.std_eps
    )
    # Each completion is one turn, and all begin in the same state: a turn's advantage is its completion's.
    advantages_PG = (1 + loss.turn_weight) * advantages_PG
    return [advantages_PG[0, i].expand(length) for i, length in enumerate(LENGTHS)]


def effect(loss: Loss, moved: bool) -> list[dict[str, Any]]:
    """Advantage and pushes of each completion. β has no effect: the reference equals the policy."""
    divide_by = denominator(torch.tensor(LENGTHS * 2), loss.aggregate, MAX_NEW_TOKENS)
    settings = loss_settings(vars(loss)) | {"beta": 0.0}
    rows = []
    for length, reward, advantages_L in zip(LENGTHS, REWARDS, advantages_of(loss), strict=True):
        steps = [LOG_RATIOS[t % len(LOG_RATIOS)] if moved else 0.0 for t in range(length)]
        logp_L = torch.tensor(steps, dtype=torch.float64)
        terms = token_terms(logp_L, torch.zeros_like(logp_L), advantages_L, denominator=divide_by, **settings)
        rows.append(
            {
                "length": length,
                "reward": reward,
                "advantage": float(advantages_L.mean()),
                "pushes": terms.push.tolist(),
                "ratios": terms.ratio.tolist(),
                "total": float(terms.push.sum()),
            }
        )
    return rows


def claims(query: Query) -> dict[str, Any]:
    """Claims about two relatives, checked against their settings and pushes."""
    grpo, dr_grpo = effect(PRESETS["grpo"].settings, False), effect(PRESETS["dr_grpo"].settings, False)

    def within(rows: list[dict[str, Any]]) -> float:
        return max(max(row["pushes"]) - min(row["pushes"]) for row in rows)

    def by_length(rows: list[dict[str, Any]]) -> float:
        """A token's push in the short right answer divided by one in the long right answer."""
        return rows[0]["pushes"][0] / rows[2]["pushes"][0]

    return {
        "dapo_baseline": PRESETS["dapo"].settings.baseline,
        "dapo_paper": PRESETS["dapo"].paper,
        "within_grpo": within(grpo),
        "within_dr_grpo": within(dr_grpo),
        "by_length_grpo": by_length(grpo),
        "by_length_dr_grpo": by_length(dr_grpo),
    }
