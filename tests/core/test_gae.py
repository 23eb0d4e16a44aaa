"""Generalized advantage estimation and the critic's loss, by hand and against the definition as a sum."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.core import gae, value_loss, whiten

DOUBLE = {"dtype": torch.float64}


def test_by_hand() -> None:
    # γ = 0.9, λ = 0.5, V = 1, 2, 3, rewards 0, 0, 5.
    # δ = 0 + 0.9·2 − 1 = 0.8;  0 + 0.9·3 − 2 = 0.7;  5 − 3 = 2.   A = 2;  0.7 + 0.45·2 = 1.6;  0.8 + 0.45·1.6 = 1.52.
    rewards, values = torch.tensor([[0.0, 0.0, 5.0]], **DOUBLE), torch.tensor([[1.0, 2.0, 3.0]], **DOUBLE)
    advantages, returns = gae(rewards, values, gamma=0.9, lam=0.5)
    assert advantages[0].tolist() == pytest.approx([1.52, 1.6, 2.0])
    assert returns[0].tolist() == pytest.approx([2.52, 3.6, 5.0])


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition, as a sum over all later surprises."""
    after = [*values[1:], 0.0]
    surprises = [r + gamma * v1 - v for r, v1, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** (k - t) * surprises[k] for k in range(t, len(rewards))) for t in range(len(rewards))]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.0), (0.8, 1.0)])
def test_rows_of_any_length_and_whatever_stands_in_padding(gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 4, 7, 2]
    rewards, values = (torch.randn(4, 7, generator=generator, **DOUBLE) for _ in range(2))
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    advantages, returns = gae(
        rewards.masked_fill(~mask, float("nan")), values.masked_fill(~mask, float("inf")), gamma, lam, mask
    )
    for i, length in enumerate(lengths):
        expected = plain_gae(rewards[i, :length].tolist(), values[i, :length].tolist(), gamma, lam)
        assert advantages[i, :length].tolist() == pytest.approx(expected, rel=1e-12)
        assert advantages[i, length:].tolist() == [0.0] * (7 - length)
    torch.testing.assert_close(returns[mask], (advantages + values)[mask])


def test_lambda_one_is_the_reward_to_come_less_the_value() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 4.0]], **DOUBLE), torch.tensor([[0.5, -3.0, 9.0]], **DOUBLE)
    advantages, returns = gae(rewards, values, gamma=1.0, lam=1.0)
    assert advantages[0].tolist() == pytest.approx([6.5, 9.0, -5.0])
    assert returns[0].tolist() == pytest.approx([7.0, 6.0, 4.0])


def test_whitened_advantages_by_hand() -> None:
    # Of 1, 3 and 8 the mean is 4, the squares 9 + 1 + 16 = 26: sample std √13, population std √(26 / 3).
    advantages = torch.tensor([[1.0, 3.0, float("nan")], [8.0, 7.0, 7.0]], **DOUBLE)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    for kind, deviation in (("sample", math.sqrt(13)), ("population", math.sqrt(26 / 3))):
        found = whiten(advantages, mask, std=kind, std_eps=0.01)
        assert found[mask].tolist() == pytest.approx([value / (deviation + 0.01) for value in (-3.0, -1.0, 4.0)])
        assert found[~mask].tolist() == [0.0, 0.0, 0.0]


def test_equal_advantages_are_whitened_to_zero() -> None:
    """One token too, and advantages that differ by rounding."""
    mask = torch.tensor([[True, True, False]])
    for advantages in ([7.7, 7.7, 1.0], [0.1 + 0.2, 0.3, 1.0]):
        assert whiten(torch.tensor([advantages], **DOUBLE), mask, std_eps=1e-8).tolist() == [[0.0] * 3]
    assert whiten(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]])).tolist() == [[0.0, 0.0]]
    assert whiten(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.bool)).shape == (0, 4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_advantages_stay_visible(broken: float) -> None:
    assert not whiten(torch.tensor([[1.0, broken, 2.0]]), torch.ones(1, 3, dtype=torch.bool)).isfinite().all()


def test_the_critics_loss_by_hand_and_where_its_gradient_ends() -> None:
    # Old values 0, returns 1, clip 0.2. V = 0.1: ½·0.81. V = 0.5: held at 0.2, ½·0.64. V = −0.5: ½·2.25, the worse of
    # the two. V = 1.5: held at 0.2, ½·0.64 is worse than ½·0.25. Padding: nothing.
    values = torch.tensor([[0.1, 0.5, -0.5, 1.5, 99.0]], requires_grad=True, **DOUBLE)
    old, returns = torch.zeros(1, 5, **DOUBLE), torch.ones(1, 5, **DOUBLE)
    mask = torch.tensor([[True, True, True, True, False]])
    loss = value_loss(values, old, returns, mask, clip=0.2)
    loss.backward()
    assert loss.item() == pytest.approx((0.81 + 0.64 + 2.25 + 0.64) / 2)
    assert values.grad[0].tolist() == pytest.approx([-0.9, 0.0, -1.5, 0.0, 0.0])
    unclipped = value_loss(values.detach(), old, returns, mask, clip=0.0)
    assert unclipped.item() == pytest.approx((0.81 + 0.25 + 2.25 + 0.25) / 2)
