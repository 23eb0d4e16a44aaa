"""Expected gradients of the estimators over all possible groups: unbiased, scaled, or in another direction."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.core import kl_estimate
from grpo.core.explain.tabular import (
    angle,
    dpo_gradient,
    dpo_loss,
    expected_estimate,
    expected_kl_gradient,
    expected_reward,
    kl,
    trpo_step,
    true_gradient,
)

LOGITS = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([-0.2, 0.5, 0.1], dtype=torch.float64)


def autograd(function) -> torch.Tensor:
    leaf = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def test_the_true_gradient_is_the_slope_of_the_expected_reward() -> None:
    expected = autograd(lambda logits: expected_reward(logits, REWARDS))
    torch.testing.assert_close(true_gradient(LOGITS, REWARDS), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("group_size", [2, 3, 5])
def test_leave_one_out_is_unbiased(group_size: int) -> None:
    found = expected_estimate(LOGITS, REWARDS, group_size, baseline="leave_one_out")
    torch.testing.assert_close(found, true_gradient(LOGITS, REWARDS), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("group_size", [2, 3, 5])
def test_the_groups_mean_shrinks_the_gradient_and_keeps_its_direction(group_size: int) -> None:
    found = expected_estimate(LOGITS, REWARDS, group_size, baseline="mean")
    expected = (1 - 1 / group_size) * true_gradient(LOGITS, REWARDS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_dividing_by_the_groups_deviation_turns_the_gradient() -> None:
    """By 13 degrees at G = 2, where only the order of two rewards is left, and less in larger groups."""
    true = true_gradient(LOGITS, REWARDS)
    angles = [angle(expected_estimate(LOGITS, REWARDS, G, scale="group_std"), true) for G in (2, 4, 6)]
    assert angles == pytest.approx([13.32, 8.18, 4.96], abs=0.01)


def test_with_two_kinds_of_reward_only_the_length_of_the_gradient_changes() -> None:
    """One right answer: the deviation is a number per group, and by symmetry the direction stays."""
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    found = expected_estimate(LOGITS, rewards, 4, scale="group_std")
    assert angle(found, true_gradient(LOGITS, rewards)) < 1e-5


def test_kl_estimates_as_losses() -> None:
    """k1 has no gradient, k2 the reverse KL's, k3 the forward KL's, k3 times the ratio the reverse KL's again."""
    reverse = autograd(lambda logits: kl(logits, REFERENCE))
    forward = autograd(lambda logits: kl(REFERENCE, logits))
    assert angle(reverse, forward) > 2
    expected = {"k1": torch.zeros(3, dtype=torch.float64), "k2": reverse, "k3": forward, "k3_ratio": reverse}
    for kind, gradient in expected.items():
        found = expected_kl_gradient(LOGITS, REFERENCE, kind)
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-15)


def test_kl_estimates_taken_off_the_reward() -> None:
    """There k1 pulls as the reverse KL does, and the others do not: −β·estimate is a reward like any other."""
    reverse = autograd(lambda logits: kl(logits, REFERENCE))
    estimates = {
        kind: kl_estimate(LOGITS.log_softmax(0), REFERENCE.log_softmax(0), kind) for kind in ("k1", "k2", "k3")
    }
    torch.testing.assert_close(true_gradient(LOGITS, estimates["k1"]), reverse, rtol=1e-12, atol=1e-15)
    assert angle(true_gradient(LOGITS, estimates["k2"]), reverse) > 10
    assert angle(true_gradient(LOGITS, estimates["k3"]), reverse) > 10


def test_trpo_goes_as_far_as_the_trust_region_and_improves() -> None:
    logits = LOGITS
    for _ in range(5):
        moved = trpo_step(logits, REWARDS, max_kl=0.01)
        assert 0.008 < kl(logits, moved) <= 0.01
        assert expected_reward(moved, REWARDS) > expected_reward(logits, REWARDS)
        logits = moved
    # To second order the step is the natural gradient's, whose direction is r − E r: the Fisher matrix is divided out.
    small = trpo_step(LOGITS, REWARDS, max_kl=1e-8) - LOGITS
    natural = REWARDS - expected_reward(LOGITS, REWARDS)
    assert angle(small - small.mean(), natural - natural.mean()) < 0.01
    # A constant added to all logits changes no probability. No step has one, for a nearly certain policy either.
    for ends in ([0.3, -0.4], [-0.8429738571449062, 2.7802008694862854]):
        edge = torch.tensor(ends, dtype=torch.float64)
        assert (trpo_step(edge, REWARDS[:2], max_kl=0.01) - edge).sum().item() == pytest.approx(0, abs=1e-12)
    assert trpo_step(LOGITS, torch.ones(3, dtype=torch.float64), max_kl=0.01).equal(LOGITS)


def test_dpo_ends_at_the_reference_tilted_by_the_rewards() -> None:
    """The minimum known in closed form: p ∝ ref · exp(r / β); and at it the gradient is 0."""
    beta = 0.5
    optimum = REFERENCE + REWARDS / beta
    assert dpo_gradient(optimum, REFERENCE, REWARDS, beta).abs().max() < 1e-15
    logits = REFERENCE.clone()
    for _ in range(3000):
        logits = logits - 5.0 * dpo_gradient(logits, REFERENCE, REWARDS, beta)
    torch.testing.assert_close(logits.softmax(0), optimum.softmax(0), rtol=1e-6, atol=1e-9)
    assert dpo_loss(logits, REFERENCE, REWARDS, beta) < dpo_loss(REFERENCE, REFERENCE, REWARDS, beta)
    # At the reference no pair has a margin: every preference costs log 2.
    assert dpo_loss(REFERENCE, REFERENCE, REWARDS, beta).item() == pytest.approx(math.log(2))
