"""What takes part in an update: masks, completions without signal, and what they must not change."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import grpo.training.gradient
from grpo.config import Config, Optimizer
from grpo.config.presets import Loss
from grpo.core import policy_loss
from grpo.model.policy import Policy
from grpo.training.annotations import add_old_logprobs
from grpo.training.gradient import accumulate_gradients, trained
from grpo.types import Group
from helpers.groups import annotated, config_with, gradient, random_groups
from helpers.policies import random_policy


def without_signal(group: Group) -> Group:
    return replace(
        group, completions=tuple(replace(c, advantages=np.zeros(len(c), np.float32)) for c in group.completions)
    )


def computed_tokens(policy, groups: list[Group], config: Config) -> int:
    seen: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: seen.append(inputs[0].numel())
    )
    accumulate_gradients(policy, groups, config)
    hook.remove()
    policy.model.zero_grad()
    return sum(seen)


def tokens(groups: list[Group]) -> int:
    return sum(len(g.prompt_tokens) + sum(map(len, g.completions)) for g in groups)


@pytest.mark.parametrize("algorithm", ["dr_grpo", "dapo", "gspo", "cispo", "sapo", "opo"])
def test_groups_without_signal_cost_nothing_and_change_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, config = random_policy("phi", torch.float64), config_with(10_000, algorithm)
    groups = random_groups()
    groups[1] = without_signal(groups[1])
    with_signal = trained(groups, config)
    assert [g.problem.id for g in with_signal] == ["p0", "p2", "p3"]
    assert all(c.advantages.any() for g in with_signal for c in g.completions)
    assert computed_tokens(policy, groups, config) == tokens(with_signal) < tokens(groups)
    found = gradient(policy, groups, config)
    # Everything computed, as if nothing were skipped.
    monkeypatch.setattr(grpo.training.gradient, "trained", lambda groups, *_: groups)
    assert computed_tokens(policy, groups, config) == tokens(groups)
    expected = gradient(policy, groups, config)
    assert expected.norm() > 0.001
    assert (found - expected).norm() / expected.norm() < 1e-12


def test_nor_do_they_cost_a_look_back_before_several_updates() -> None:
    policy = random_policy("phi")
    config = Config(algorithm="dr_grpo", optimizer=Optimizer(epochs=2))
    groups = random_groups()
    groups[1] = without_signal(groups[1])
    seen: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: seen.append(inputs[0].numel())
    )
    found = add_old_logprobs(annotated(groups, policy, None, config), policy, config)
    assert sum(seen) == tokens(trained(groups, config)) < tokens(groups)
    assert [g.completions[0].old_logprobs is None for g in found] == [False, True, False, False]
    # Where all of it has a gradient, all of it is looked at, and once.
    seen.clear()
    entropy = replace(config, loss=replace(config.loss, entropy=0.01))
    found = add_old_logprobs(annotated(groups, policy, None, entropy), policy, entropy)
    hook.remove()
    assert sum(seen) == tokens(groups)
    assert all(c.old_logprobs is not None for g in found for c in g.completions)
    silent = [without_signal(group) for group in groups]
    assert all(c.old_logprobs is None for g in add_old_logprobs(silent, policy, config) for c in g.completions)


@pytest.mark.parametrize("loss", [{"beta": 0.1}, {"entropy": 0.01}])
def test_what_still_has_a_gradient_without_signal_is_computed(loss: dict[str, float]) -> None:
    policy, config = random_policy("phi"), config_with(10_000, "dr_grpo", **loss)
    groups = [
        replace(g, completions=tuple(replace(c, ref_logprobs=np.full(len(c), -2.0, np.float32)) for c in g.completions))
        for g in map(without_signal, random_groups())
    ]
    assert computed_tokens(policy, groups, config) == tokens(groups)
    assert gradient(policy, groups, config).norm() > 1e-4
    in_reward = replace(config, loss=replace(config.loss, entropy=0.0, kl_in="reward"))
    assert trained(groups, in_reward) == []


@pytest.mark.parametrize("aggregate", ["sequence", "token", "constant"])
def test_cut_completions_are_masked_and_the_denominator_stays(aggregate: str) -> None:
    """Left out of the numerator alone: the gradient is that of the same batch in which their advantage is 0."""
    policy = random_policy("phi", torch.float64)
    groups = random_groups()
    cut = [
        replace(g, completions=tuple(replace(c, finish="length") if i == 0 else c for i, c in enumerate(g.completions)))
        for g in groups
    ]
    masked = config_with(10_000, "dr_grpo", aggregate=aggregate, mask_truncated=True)
    zeroed = [
        replace(
            g,
            completions=(
                replace(g.completions[0], advantages=np.zeros(len(g.completions[0]), np.float32)),
                *g.completions[1:],
            ),
        )
        for g in groups
    ]
    plain = replace(masked, loss=replace(masked.loss, mask_truncated=False))
    expected = gradient(policy, zeroed, plain)
    found = gradient(policy, cut, masked)
    assert (found - expected).norm() / expected.norm() < 1e-12
    unmasked = gradient(policy, cut, plain)
    assert (unmasked - expected).norm() / expected.norm() > 0.05
    # Nor does a KL term reach them.
    config = replace(masked, loss=replace(masked.loss, beta=0.1))
    assert all(c.finish == "stop" for g in trained(cut, config) for c in g.completions)


def test_shares_are_of_all_scored_tokens() -> None:
    policy, config = random_policy("phi"), config_with(10_000, "dr_grpo")
    groups = random_groups()
    carrying = sum(len(c) for g in groups for c in g.completions if c.advantages.any())
    everything = sum(len(c) for g in groups for c in g.completions)
    metrics = accumulate_gradients(policy, groups, config).metrics()
    policy.model.zero_grad()
    assert 0 < carrying < everything
    assert metrics["gradient_tokens"] == pytest.approx(carrying / everything)


def test_every_setting_of_the_loss_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    unusual = {
        "ratio": "sequence",
        "surrogate": "weight",
        "clip_low": 0.11,
        "clip_high": 0.12,
        "cap": 3.5,
        "gate_up": 1.3,
        "gate_down": 1.4,
        "aggregate": "constant",
        "beta": 0.07,
        "kl": "k2",
        "correction": "sequence_mask",
        "correction_cap": 1.7,
    }
    arguments = inspect.signature(policy_loss).parameters
    assert {field.name for field in fields(Loss)} & arguments.keys() - {"entropy"} == unusual.keys()
    got: dict[str, object] = {}

    def spy(*tensors: torch.Tensor, **options: object) -> object:
        got.update(options)
        return policy_loss(*tensors, **options)

    monkeypatch.setattr(grpo.training.gradient, "policy_loss", spy)
    groups = [
        replace(g, completions=tuple(replace(c, ref_logprobs=np.full(len(c), -2.0, np.float32)) for c in g.completions))
        for g in random_groups()
    ]
    policy = random_policy("phi")
    accumulate_gradients(policy, groups, config_with(10_000, "grpo", entropy=0.013, **unusual))
    assert {name: got[name] for name in unusual} == unusual
    assert got["entropy_weight"] == 0.013
    assert got.keys() == arguments.keys() - {"logp", "old_logp", "advantages", "mask"}


def test_a_stretched_loss_leaves_the_very_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, config, groups = random_policy("llama"), config_with(40, "dapo"), random_groups()
    expected = gradient(policy, groups, config)
    monkeypatch.setattr(Policy, "loss_scale", lambda *_: 4096.0)
    assert torch.equal(gradient(policy, groups, config), expected)


def test_float16_holds_the_gradient_closer_than_bfloat16() -> None:
    policy, config, groups = random_policy("llama"), config_with(10_000, "dapo"), random_groups()
    assert [replace(policy, compute=each).loss_scale(1000) for each in (None, torch.bfloat16)] == [1.0, 1.0]
    assert replace(policy, compute=torch.float16).loss_scale(1000) == 1024.0
    exact = gradient(policy, groups, config)
    wide, fine = (
        (gradient(replace(policy, compute=each), groups, config) - exact).norm() / exact.norm()
        for each in (torch.bfloat16, torch.float16)
    )
    assert fine < wide / 4
    assert fine < 4e-3
