"""What takes part in an update: masks, completions without signal, and what they must not change."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import grpo.training.gradient
from grpo.config import Config, Optimizer
from grpo.config.sections import Loss
from grpo.core import policy_loss
from grpo.model.optimizer import make_optimizer
from grpo.model.policy import Policy
from grpo.training.annotations import add_old_logprobs
from grpo.training.gradient import accumulate_gradients, contributing
from grpo.training.loop import update
from grpo.types import Completion, Group
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
    with_signal = contributing(groups, config)
    assert [g.problem.id for g in with_signal] == ["p0", "p2", "p3"]
    assert all(c.advantages.any() for g in with_signal for c in g.completions)
    assert computed_tokens(policy, groups, config) == tokens(with_signal) < tokens(groups)
    found = gradient(policy, groups, config)
    # Everything computed, as if nothing were skipped.
    monkeypatch.setattr(grpo.training.gradient, "contributing", lambda groups, *_: groups)
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
    assert sum(seen) == tokens(contributing(groups, config)) < tokens(groups)
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
    groups = with_reference(list(map(without_signal, random_groups())))
    assert computed_tokens(policy, groups, config) == tokens(groups)
    assert gradient(policy, groups, config).norm() > 1e-4
    in_reward = replace(config, loss=replace(config.loss, entropy=0.0, kl_in="reward"))
    assert contributing(groups, in_reward) == []


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
    assert all(c.finish == "stop" for g in contributing(cut, config) for c in g.completions)


def step_metrics(groups: list[Group], minibatches: int = 1, **loss: object) -> dict[str, float]:
    """Metrics of one step at learning rate 0, so that every update of the step sees the same policy."""
    policy = random_policy("phi", torch.float64)
    config = replace(config_with(10_000, "dr_grpo", **loss), lr=0.0, optimizer=Optimizer(minibatches=minibatches))
    return update(policy, make_optimizer(policy, config.optimizer), groups, config, step=0)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("minibatches", [1, 2, 4])
def test_gradient_tokens_are_a_share_of_all_scored_tokens_of_the_step(minibatches: int, beta: float) -> None:
    """Three of four groups have no signal, so some minibatches have no update; the share is the same."""
    groups = with_reference(random_groups())
    groups[1:] = map(without_signal, groups[1:])
    unscored = replace(groups[3].completions[0], reward=None)
    groups[3] = replace(groups[3], completions=(unscored, *groups[3].completions[1:]))
    with_signal = sum(len(c) for c in groups[0].completions if c.advantages.any())
    scored = sum(len(c) for g in groups for c in g.completions if c.reward is not None)
    found = step_metrics(groups, minibatches, beta=beta)
    assert 0 < found["gradient_tokens"] == with_signal / scored < 0.4
    cut = [replace(g, completions=tuple(replace(c, finish="length") for c in g.completions)) for g in groups]
    assert step_metrics(cut, minibatches, mask_truncated=True)["gradient_tokens"] == 0.0


def test_without_any_signal_the_share_is_zero_not_missing() -> None:
    found = step_metrics(list(map(without_signal, random_groups())))
    assert (found["updates"], found["gradient_tokens"]) == (0.0, 0.0)


def with_reference(groups: list[Group]) -> list[Group]:
    return [
        replace(g, completions=tuple(replace(c, ref_logprobs=np.full(len(c), -2.0, np.float32)) for c in g.completions))
        for g in groups
    ]


@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize(
    "limits", [{}, {"surrogate": "weight", "cap": 1.5}, {"cap": 1.5, "correction": "token", "correction_cap": 1.2}]
)
def test_shares_do_not_depend_on_beta(limits: dict[str, object], minibatches: int) -> None:
    """The same groups and policy: with β > 0 completions without signal are computed too, and change no share."""
    rng = np.random.default_rng(0)
    policy = random_policy("phi", torch.float64)
    groups = with_reference(random_groups(groups=8))
    groups[5:] = map(without_signal, groups[5:])
    groups = annotate_old(groups, policy, rng)
    found, with_kl = (step_metrics(groups, minibatches, beta=beta, **limits) for beta in (0.0, 0.1))
    names = ("clip_low", "clip_high", "capped", "corrected", "gradient_tokens")
    assert {name: found.get(name) for name in names} == {name: with_kl.get(name) for name in names}
    # Counted one token at a time.
    tokens = [
        (logp, old, sampler, advantage)
        for c, logps in zip((c for g in groups for c in g.completions), policy_logps(groups, policy), strict=True)
        for logp, old, sampler, advantage in zip(logps, c.old_logprobs, c.logprobs, c.advantages, strict=True)
        if advantage
    ]
    by_clip = limits.get("surrogate") is None
    low = sum(np.exp(logp - old) < 0.8 and advantage < 0 for logp, old, _, advantage in tokens)
    assert found["clip_low"] == pytest.approx(by_clip * low / len(tokens))
    assert low > 3
    if "cap" in limits:
        capped = sum(np.exp(logp - old) > 1.5 and (advantage < 0 or not by_clip) for logp, old, _, advantage in tokens)
        assert capped > 0
        assert found["capped"] == pytest.approx(capped / len(tokens))
    if "correction" in limits:
        corrected = sum(np.exp(old - sampler) > 1.2 for _, old, sampler, _ in tokens)
        assert corrected > 0
        assert found["corrected"] == pytest.approx(corrected / len(tokens))


def policy_logps(groups: list[Group], policy: Policy) -> list[np.ndarray]:
    """Of each completion: the reference's log-probs, with the policy itself as the reference."""
    found = annotated(groups, policy, replace(policy), config_with(10_000, "grpo"))
    return [c.ref_logprobs for g in found for c in g.completions]


def annotate_old(groups: list[Group], policy: Policy, rng: np.random.Generator) -> list[Group]:
    """Old log-probs 0.4 away from the policy's on average, as after several updates; the sampler's close to them."""
    logps = iter(policy_logps(groups, policy))

    def annotate(c: Completion) -> Completion:
        old = next(logps) + rng.normal(0, 0.4, len(c))
        return replace(c, old_logprobs=old, logprobs=old + rng.normal(0, 0.3, len(c)))

    return [replace(g, completions=tuple(map(annotate, g.completions))) for g in groups]


@pytest.mark.parametrize("aggregate", ["sequence", "token", "constant"])
def test_the_parts_of_the_loss_add_up(aggregate: str) -> None:
    groups = with_reference(random_groups())
    both = step_metrics(groups, minibatches=2, aggregate=aggregate, beta=0.1, entropy=0.02)
    assert both["loss"] == pytest.approx(both["policy_loss"] + both["kl_loss"] - both["entropy_bonus"], rel=1e-12)
    assert min(abs(both[name]) for name in ("policy_loss", "kl_loss", "entropy_bonus")) > 1e-4
    alone = step_metrics(groups, minibatches=2, aggregate=aggregate, beta=0.0)
    assert alone["policy_loss"] == alone["loss"]
    assert not {"kl_loss", "entropy_bonus"} & alone.keys()
    if aggregate == "token":  # one update: β times the mean KL, and the weight times the mean entropy
        once = step_metrics(groups, aggregate="token", beta=0.1, entropy=0.02)
        assert once["kl_loss"] == pytest.approx(0.1 * once["kl"], rel=1e-12)
        assert once["entropy_bonus"] == pytest.approx(0.02 * once["entropy"], rel=1e-12)


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
    groups = with_reference(random_groups())
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
