"""Credit: from the rewards of completions to an advantage for every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grpo.config import Config
from grpo.config.sections import Loss
from grpo.core import (
    gae,
    group_advantages,
    kl_estimate,
    parts_advantages,
    process_advantages,
    reward_statistics,
    turn_advantages,
    whiten,
)
from grpo.episodes.kinds import part_names
from grpo.errors import GrpoError
from grpo.rewards.functions import parse
from grpo.types import Completion, Group, changed

LARGE = 1e15
"""Squares of larger rewards, summed over a batch of a million completions, may exceed the largest float32."""


def credit(groups: Sequence[Group], config: Config) -> tuple[list[Group], dict[str, float]]:
    """(groups with advantages, one per token, and a critic's returns; metrics of the rewards)"""
    loss = config.loss
    rewards_PG = _rewards([[np.nan if c.reward is None else c.reward for c in g.completions] for g in groups])
    valid_PG = ~rewards_PG.isnan()
    metrics: dict[str, float] = {}
    if loss.baseline == "value":
        groups, metrics = _by_value(groups, config)
    elif loss.credit == "process":
        groups = [_by_step(group, loss) for group in groups]
    elif loss.turn_weight:
        compared = [shared for group in groups for shared in _compared_turns(group)]
        metrics["compared_turns"] = sum(compared) / max(1, len(compared))
        groups = [_by_turn(group, config) for group in groups]
    else:
        groups = _by_completion(groups, config, valid_PG)
    advantages_PG = torch.tensor([[float(c.advantages.mean()) for c in g.completions] for g in groups])  # type: ignore[union-attr]
    metrics |= reward_statistics(rewards_PG, advantages_PG, valid_PG) | penalties(groups, config)
    # The advantages of single tokens may cancel in a completion's mean.
    metrics["zero_signal_groups"] = sum(not has_signal(group) for group in groups) / len(groups)
    return list(groups), metrics


def _rewards(rows: Sequence[Sequence[Any]]) -> torch.Tensor:
    """Rewards as float32, or float64 where sums of their squares could overflow in float32."""
    rewards = torch.tensor(rows, dtype=torch.float64)
    return rewards if rewards.nan_to_num(0.0).abs().max() > LARGE else rewards.float()


def has_signal(group: Group) -> bool:
    return any(completion.advantages is not None and completion.advantages.any() for completion in group.completions)


def loss_beta(loss: Loss) -> float:
    """Weight of the KL divergence in the loss."""
    return loss.beta if loss.kl_in == "loss" else 0.0


def shaped_reward(completion: Completion, config: Config) -> float:
    """The weighted sum of the completion's parts minus the length penalty; NaN for an unscored completion."""
    if completion.reward is None:
        return np.nan
    reward = completion.reward
    if config.loss.weights:
        weigh = part_weights(config)
        reward = sum(weigh(part) * value for part, value in completion.parts.items() if value is not None)
    return reward - overlong_penalty(completion.sequence_length, config.max_new_tokens, config.loss.overlong)


def part_weights(config: Config) -> Callable[[str], float]:
    """Function from the name of a part to its weight: that of `loss.weights` times that of `reward`.

    >>> weigh = part_weights(Config(reward="task, mine.py:short*0.5", loss=Loss(weights="correct=2, short=3")))
    >>> weigh("correct"), weigh("short"), weigh("format")
    (2.0, 1.5, 1.0)
    """
    in_loss, in_reward = named_weights(config.loss), {spec.part: spec.weight for spec in parse(config.reward)}
    # The parts of the task's checker have other names than `task`; an environment's reward always has weight 1.
    of_task = in_reward.get("task", 1.0)
    in_reward |= dict.fromkeys(part_names(config.episodes.env), 1.0)
    return lambda part: in_loss.get(part, 1.0) * in_reward.get(part, of_task)


def named_weights(loss: Loss) -> dict[str, float]:
    """Weight by part, from `loss.weights`.

    >>> named_weights(Loss(weights="correct=1, format=0.2"))
    {'correct': 1.0, 'format': 0.2}
    """
    pairs = (part.partition("=") for part in loss.weights.split(",") if part)
    return {name.strip(): float(weight) for name, _, weight in pairs}


def check_weights(parts: Iterable[str], config: Config) -> None:
    """Refuses a weight of a part that is neither one of `parts`, those of the first step, nor named by `reward` or
    `episodes.env`. (A completion whose checker timed out has no parts. Later steps need not have problems of every
    kind.)"""
    known = dict.fromkeys(parts)
    named = [spec.part for spec in parse(config.reward) if spec.source != "task"] + part_names(config.episodes.env)
    unknown = named_weights(config.loss).keys() - known.keys() - set(named)
    if known and unknown:
        raise GrpoError(
            f"field loss.weights: unknown part {min(unknown)!r}; the reward has {', '.join(known)}; return None "
            "for a part that does not apply to a problem"
        )


def overlong_penalty(length: int, max_new_tokens: int, share: float) -> float:
    """0 up to (1 − share) · max_new_tokens, rising linearly to 1 at max_new_tokens (DAPO, arXiv 2503.14476 eq. 13).

    >>> [overlong_penalty(length, 100, 0.2) for length in (80, 85, 100)]
    [0.0, 0.25, 1.0]
    """
    room = share * max_new_tokens
    return max(0.0, length - (max_new_tokens - room)) / room if room else 0.0


def kl_tokens(completion: Completion, kind: str) -> torch.Tensor:
    """KL estimate of each token under the policy that sampled it."""
    logp = completion.logprobs if completion.old_logprobs is None else completion.old_logprobs
    assert completion.ref_logprobs is not None
    return kl_estimate(torch.as_tensor(logp).float(), torch.as_tensor(completion.ref_logprobs).float(), kind)


def penalties(groups: Sequence[Group], config: Config) -> dict[str, float]:
    """Mean penalties that were subtracted from the rewards; 0 where nothing was scored."""
    loss, found = config.loss, {}
    scored = [completion for group in groups for completion in group.completions if completion.reward is not None]
    if loss.overlong:
        taken = [overlong_penalty(c.sequence_length, config.max_new_tokens, loss.overlong) for c in scored]
        found["overlong_penalty"] = sum(taken) / max(1, len(scored))
    if loss.beta and loss.kl_in == "reward":
        taken = [loss.beta * float(kl_tokens(c, loss.kl).sum()) for c in scored]
        found["kl_penalty"] = sum(taken) / max(1, len(scored))
    return found


def _by_completion(groups: Sequence[Group], config: Config, valid_PG: torch.Tensor) -> list[Group]:
    """One advantage per completion, the same for all its tokens."""
    loss = config.loss
    if loss.parts == "normalise":
        advantages_PG = _by_part(groups, config, valid_PG)
    else:
        rewards_PG = _rewards([[shaped_reward(c, config) for c in g.completions] for g in groups])
        if loss.beta and loss.kl_in == "reward":
            kl_PG = torch.tensor([[float(kl_tokens(c, loss.kl).sum()) for c in g.completions] for g in groups])
            rewards_PG = rewards_PG - loss.beta * kl_PG
        lengths_PG = torch.tensor([[len(c) for c in g.completions] for g in groups])
        advantages_PG = group_advantages(
            rewards_PG,
            valid_PG,
            lengths_PG,
            baseline=loss.baseline,
            scale=loss.scale,
            std=loss.std,
            std_eps=loss.std_eps,
        )
    values = iter(advantages_PG.flatten().tolist())
    return _each(groups, lambda c: changed(c, advantages=np.full(len(c), next(values), dtype=np.float32)))


def _by_part(groups: Sequence[Group], config: Config, valid_PG: torch.Tensor) -> torch.Tensor:
    """Each part normalised in its group; the length penalty is one more part."""
    loss, weigh = config.loss, part_weights(config)
    names = list(dict.fromkeys(name for group in groups for c in group.completions for name in c.parts))

    def row(completion: Completion) -> list[float]:
        # A completion that timed out or crashed earns 0 in every part.
        missing = 0.0 if completion.why else None
        found = [completion.parts.get(name, missing) for name in names]
        penalty = -overlong_penalty(completion.sequence_length, config.max_new_tokens, loss.overlong)
        return [np.nan if value is None else value for value in (*found, penalty if loss.overlong else None)]

    parts_PGK = _rewards([[row(completion) for completion in group.completions] for group in groups])
    weights_K = torch.tensor([*map(weigh, names), 1.0])
    return parts_advantages(parts_PGK, weights_K, valid_PG, std=loss.std, std_eps=loss.std_eps)


def _by_step(group: Group, loss: Loss) -> Group:
    """Each token gets the sum of the normalised rewards of the steps that end at it or after it."""
    scored = [completion for completion in group.completions if completion.reward is not None]
    advantages = process_advantages(
        [[reward for _, reward in completion.steps] for completion in scored],
        [[end for end, _ in completion.steps] for completion in scored],
        [len(completion) for completion in scored],
        scale=loss.scale,
        std=loss.std,
        std_eps=loss.std_eps,
    )
    return _credited(group, [tokens.numpy() for tokens in advantages])


def _credited(group: Group, advantages: Sequence[np.ndarray]) -> Group:
    """The group with these advantages of its scored completions, and 0 for the others."""
    values = iter(advantages)

    def credited(completion: Completion) -> Completion:
        unscored = completion.reward is None
        return changed(completion, advantages=np.zeros(len(completion), np.float32) if unscored else next(values))

    return _each([group], credited)[0]


def _by_turn(group: Group, config: Config) -> Group:
    """One advantage per turn, the same for all its tokens."""
    loss = config.loss
    scored = [completion for completion in group.completions if completion.reward is not None]
    advantages = turn_advantages(
        [turn_rewards(completion, config) for completion in scored],
        [states_of(completion) for completion in scored],
        weight=loss.turn_weight,
        gamma=loss.turn_gamma,
        scale=loss.scale,
        std=loss.std,
        std_eps=loss.std_eps,
    )
    of_turns = zip(advantages, scored, strict=True)
    return _credited(group, [np.repeat(turns.numpy(), np.diff([0, *done.turn_ends])) for turns, done in of_turns])


def _compared_turns(group: Group) -> list[bool]:
    """Of each turn of the scored completions, whether another turn of the group began in the same state."""
    states = [state for done in group.completions if done.reward is not None for state in states_of(done)]
    count = Counter(states)
    return [count[state] > 1 for state in states]


def states_of(completion: Completion) -> list[tuple[str, ...]]:
    """The state that each turn began in: the texts that the episode had read. The problem is the group's.

    >>> from grpo.types import Observation
    >>> read = (Observation(2, np.array([7]), "<"), Observation(3, np.array([8]), ">"))
    >>> states_of(Completion("", np.arange(4), np.zeros(4), "stop", turns=("a", "b", "c"), observations=read))
    [(), ('<',), ('<', '>')]
    """
    starts = [0, *completion.turn_ends[:-1]]
    return [tuple(seen.text for seen in completion.observations if seen.after <= start) for start in starts]


def turn_rewards(completion: Completion, config: Config) -> list[float]:
    """Reward of each turn. The last turn also gets the completion's reward minus the sum of all turn rewards."""
    by_end = dict(completion.steps)
    rewards = [by_end.get(end - 1, 0.0) for end in completion.turn_ends]
    rewards[-1] += shaped_reward(completion, config) - sum(rewards)
    return rewards


def _by_value(groups: Sequence[Group], config: Config) -> tuple[list[Group], dict[str, float]]:
    """(groups with advantages over the critic's values, by generalized advantage estimation; metrics of the critic)"""
    loss = config.loss
    completions = [completion for group in groups for completion in group.completions]
    lengths_N1 = torch.tensor([[len(completion)] for completion in completions])
    mask_NL = torch.arange(int(lengths_N1.max())) < lengths_N1
    # Unscored completions are not trained on, and must not change the statistics of the others.
    scored_NL = mask_NL & torch.tensor([[completion.reward is not None] for completion in completions])
    rewards_NL, values_NL = torch.zeros(mask_NL.shape), torch.zeros(mask_NL.shape)
    for i, completion in enumerate(completions):
        assert completion.values is not None
        values_NL[i, : len(completion)] = torch.as_tensor(completion.values)
        rewards_NL[i, : len(completion)] = token_rewards(completion, config)
    advantages_NL, returns_NL = gae(rewards_NL, values_NL, config.critic.gamma, config.critic.lam, scored_NL)
    values_N, returns_N = values_NL[scored_NL], returns_NL[scored_NL]
    metrics = {"value_mean": float(values_N.mean()) if len(values_N) else 0.0}
    if len(returns_N) > 1 and returns_N.std() > 0:
        metrics["explained_variance"] = float(1 - (returns_N - values_N).var() / returns_N.var())
    if loss.scale == "batch_std":
        advantages_NL = whiten(advantages_NL, scored_NL, std=loss.std, std_eps=loss.std_eps)
    rows = iter(zip(advantages_NL.numpy(), returns_NL.numpy(), strict=True))

    def credited(completion: Completion) -> Completion:
        advantages, returns = next(rows)
        return changed(completion, advantages=advantages[: len(completion)], returns=returns[: len(completion)])

    return _each(groups, credited), metrics


def token_rewards(completion: Completion, config: Config) -> torch.Tensor:
    """Reward of each token: the completion's at its last token, or a step's at the step's end, minus β·KL."""
    loss = config.loss
    rewards_L = torch.zeros(len(completion))
    if completion.reward is None:
        return rewards_L
    if loss.credit == "process":
        for end, reward in completion.steps:
            rewards_L[end] += reward
    else:
        rewards_L[-1] = shaped_reward(completion, config)
    if loss.beta and loss.kl_in == "reward":
        rewards_L = rewards_L - loss.beta * kl_tokens(completion, loss.kl)
    return rewards_L


def _each(groups: Sequence[Group], change: Callable[[Completion], Completion]) -> list[Group]:
    return [
        replace(group, completions=tuple(change(completion) for completion in group.completions)) for group in groups
    ]
