"""What is recorded of single tokens is what the update saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo.config import Config, Optimizer, System
from grpo.model.optimizer import make_optimizer
from grpo.model.packing import pack
from grpo.model.policy import Policy, logprobs
from grpo.record.trace import Traces, traced_groups
from grpo.training.annotations import add_old_logprobs
from grpo.training.loop import update
from grpo.types import Group
from helpers.groups import random_groups
from helpers.policies import random_policy


def rewarded(groups: list[Group]) -> list[Group]:
    """Unequal rewards in the second group alone."""

    def one(index: int, group: Group) -> Group:
        rewards = [float(index == 1 and place == 0) for place in range(len(group.completions))]
        completions = zip(group.completions, rewards, strict=True)
        advantages = lambda done, reward: np.full(len(done), reward - 0.5, dtype=np.float32)  # noqa: E731
        return replace(
            group,
            completions=tuple(
                replace(done, reward=reward, advantages=advantages(done, reward)) for done, reward in completions
            ),
        )

    return [one(index, group) for index, group in enumerate(groups)]


def under(policy: Policy, group: Group) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each completion's log-probabilities and entropies, the group packed alone."""
    [batch] = pack([group], 10_000)
    with torch.no_grad():
        logp_NL, entropy_NL = logprobs(policy, batch, 1.0)
    lengths = [len(done) for done in group.completions]
    return [(logp_NL[i, :n].numpy(), entropy_NL[i, :n].numpy()) for i, n in enumerate(lengths)]


def test_groups_with_unequal_rewards_are_traced_first() -> None:
    groups = rewarded(random_groups(groups=4))
    assert traced_groups(groups, 1) == [1]
    assert traced_groups(groups, 3) == [1, 0, 2]
    assert traced_groups(groups, 0) == []


@pytest.mark.parametrize("token_budget", [10_000, 30])
def test_one_update_sees_the_policy_as_it_was(token_budget: int) -> None:
    """However the batch is split: 30 tokens hold about one completion."""
    policy, groups = random_policy("llama"), rewarded(random_groups(groups=3))
    expected = under(policy, groups[1])
    config = Config(algorithm="dr_grpo", system=System(token_budget=token_budget))
    optimizer = make_optimizer(policy, Optimizer())
    traces = Traces(groups, 1)
    update(policy, optimizer, groups, config, 0, traces=traces)
    traced = traces.add_to(groups)
    assert all(done.trace is None for index in (0, 2) for done in traced[index].completions)
    completions = sum(len(group.completions) for group in groups)
    for done, (logp, entropy) in zip(traced[1].completions, expected, strict=True):
        assert done.advantages is not None
        if not done.advantages.any():  # has no gradient, and is not computed
            assert done.trace is None
            continue
        assert done.trace is not None
        np.testing.assert_allclose(done.trace.logprobs, logp, atol=2e-5)
        np.testing.assert_allclose(done.trace.entropies, entropy, atol=2e-5)
        assert done.trace.denominator == completions * config.max_new_tokens


def test_of_two_updates_the_last_is_traced() -> None:
    policy, groups = random_policy("llama"), rewarded(random_groups(groups=3))
    config = Config(algorithm="dr_grpo", lr=0.01, optimizer=Optimizer(epochs=2, warmup_steps=0))
    optimizer = make_optimizer(policy, Optimizer())
    groups = add_old_logprobs(groups, policy, config)
    before = under(policy, groups[1])
    update(policy, optimizer, groups, replace(config, optimizer=Optimizer(epochs=1, warmup_steps=0)), 0)
    after_one = under(policy, groups[1])

    policy = random_policy("llama")
    optimizer = make_optimizer(policy, Optimizer())
    traces = Traces(groups, 1)
    update(policy, optimizer, groups, config, 0, traces=traces)
    for done, (old, _), (logp, _) in zip(traces.add_to(groups)[1].completions, before, after_one, strict=True):
        assert done.advantages is not None
        if not done.advantages.any():  # has no gradient, and is not computed
            assert done.trace is None
            continue
        assert done.trace is not None
        assert done.old_logprobs is not None
        np.testing.assert_allclose(done.old_logprobs, old, atol=2e-5)
        np.testing.assert_allclose(done.trace.logprobs, logp, atol=2e-4)
        assert np.abs(done.trace.logprobs - done.old_logprobs).max() > 0.01, "the policy moved between the updates"
