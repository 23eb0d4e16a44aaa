"""The effect of updates on probabilities of answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from grpo.core import group_advantages, policy_loss
from grpo.lab.chapters.query import Query, number, numbers, text, whole, word

ANSWERS = ("A", "B", "C", "D", "E")
CHANCES = (0.3, 0.25, 0.2, 0.15, 0.1)
REWARDS = (0.7, 0.2, 0.1, 0.0, 0.3)
MOST_UPDATES = 60


def tabular_updates(query: Query) -> dict[str, Any]:
    """Updates of a policy over five answers: sample a group, compute `policy_loss`, step the optimizer."""
    rewards_V = torch.tensor(numbers(query, "rewards", REWARDS, 0, 1, least=5, most=5), dtype=torch.float64)
    size, seed = whole(query, "g", 8, 2, 64), whole(query, "seed", 1, 0, 9999)
    updates, lr = whole(query, "updates", 20, 0, MOST_UPDATES), number(query, "lr", 0.3, 0.01, 2)
    scale = word(query, "scale", "group_std", ("group_std", "none"))
    logits_V = torch.tensor(CHANCES, dtype=torch.float64).log().requires_grad_()
    optimizer = torch.optim.SGD([logits_V], lr=lr)
    generator = torch.Generator().manual_seed(seed)
    trail, last = [logits_V.softmax(0).tolist()], {}
    for _ in range(updates):
        drawn_G = torch.multinomial(logits_V.detach().softmax(0), size, replacement=True, generator=generator)
        advantages_G = group_advantages(rewards_V[drawn_G][None], scale=scale)[0]
        logp_G1 = logits_V.log_softmax(0)[drawn_G][:, None]
        loss, _ = policy_loss(
            logp_G1, logp_G1.detach(), advantages_G, torch.ones(size, 1, dtype=torch.bool), denominator=float(size)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trail.append(logits_V.softmax(0).tolist())
        last = {"drawn": drawn_G.tolist(), "advantages": advantages_G.tolist(), "loss": loss.item()}
    return {"answers": ANSWERS, "rewards": rewards_V.tolist(), "trail": trail, "last": last}


def nano_update(query: Query) -> dict[str, Any]:
    """One optimizer step of `nano` on one group: the probability of each completion before and after."""
    # Imported here, because pages without the model should not wait for it.
    from grpo.lab.chapters.nano import fresh_nano, nano, sum_of_three
    from grpo.lab.chapters.update import one_update, seen_by, settings
    from grpo.model.optimizer import make_optimizer

    config = settings(query)
    problem = sum_of_three(text(query, "prompt", "29+60+75=", 20))
    with nano() as before, fresh_nano() as student:
        optimizer = make_optimizer(student.policy, config.optimizer)
        *_, pause = one_update(student, before.policy, optimizer, [problem], config)
        [after] = seen_by(student.policy, pause.groups, config)
    [group] = pause.groups
    rows: dict[str, dict[str, Any]] = {}
    for old, new in zip(group.completions, after.completions, strict=True):
        row = {
            "text": old.text,
            "times": sum(other.text == old.text for other in group.completions),
            "reward": old.reward,
            "advantage": 0.0 if old.advantages is None else float(old.advantages.mean()),
            "before": _probability(old.logprobs),
            "after": _probability(new.logprobs),
        }
        rows.setdefault(old.text, row)
    ordered = sorted(rows.values(), key=lambda row: -row["before"])
    return {"prompt": problem.prompt, "answer": problem.answer, "lr": config.lr, "completions": ordered}


def _probability(logprobs_L: np.ndarray) -> float:
    return math.exp(logprobs_L.sum(dtype=np.float64))
