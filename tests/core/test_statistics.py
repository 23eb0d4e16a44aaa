"""Statistics of the loss, by hand; and that micro-batches add up to the whole batch."""

import math

import pytest
import torch

from grpo.core import Limits, LossStatistics, reward_statistics
from grpo.core.loss import clipped_tokens

MASK = torch.tensor([[True, True, True], [True, False, False]])
RATIO = torch.tensor([[1.5, 0.5, 1.0], [0.5, 9.0, 0.1]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[2.0, 2.0, 0.0], [-1.0, 5.0, -5.0]], dtype=torch.float64)
KL = torch.tensor([[0.1, 0.2, 0.3], [0.4, 100.0, 100.0]], dtype=torch.float64)
ENTROPY = torch.tensor([[1.0, 2.0, 3.0], [4.0, math.nan, math.inf]], dtype=torch.float64)


def clipped(ratio, advantages):
    return clipped_tokens(ratio, advantages, "clip", Limits(clip_low=0.2, clip_high=0.2))


def measure(rows=slice(None), *, loss=-0.25, kl=KL, entropy=ENTROPY) -> LossStatistics:
    return LossStatistics.measure(
        torch.tensor(loss, dtype=torch.float64, requires_grad=True),
        RATIO[rows],
        ADVANTAGES[rows],
        MASK[rows],
        parts={"policy_loss": torch.tensor(loss, dtype=torch.float64)},
        clipped=clipped(RATIO[rows], ADVANTAGES[rows]),
        kl_NL=None if kl is None else kl[rows],
        entropy_NL=None if entropy is None else entropy[rows],
    )


def test_by_hand():
    # Four tokens: (ρ 1.5, A 2), (0.5, 2), (1, 0), (0.5, −1); everything else is padding.
    expected = {
        "loss": -0.25,
        "policy_loss": -0.25,
        "gradient_tokens": 3 / 4,  # all but the one with A = 0
        "clip_high": 1 / 3,  # of the three tokens with A ≠ 0: ρ 1.5 with A 2
        "clip_low": 1 / 3,  # ρ 0.5 with A −1; ρ 0.5 with A 2 keeps its gradient
        "capped": 0.0,
        "kl": 1.0 / 4,  # 0.1 + 0.2 + 0.3 + 0.4
        "entropy": 10.0 / 4,
        "ratio_min": 0.5,
        "ratio_max": 1.5,
    }
    assert measure().metrics() == pytest.approx(expected, rel=1e-15)


def test_sums_stay_tensors_without_a_graph():
    statistics = measure()
    assert isinstance(statistics.clip_low, torch.Tensor)
    assert not statistics.loss.requires_grad
    assert float(statistics.tokens) == 4.0


def test_parts_add_up_to_the_whole():
    # Each part reports its share of the loss; shares of tokens are formed after adding, not averaged.
    joined = measure(slice(0, 1), loss=-0.75) + measure(slice(1, 2), loss=0.5)
    assert joined.metrics() == pytest.approx(measure(loss=-0.25).metrics(), rel=1e-15)
    assert measure(slice(0, 1)).metrics()["gradient_tokens"] == pytest.approx(2 / 3)


def test_what_was_not_measured_is_left_out():
    metrics = measure(kl=None, entropy=None).metrics()
    assert not {"kl", "entropy"} & metrics.keys()
    assert measure().metrics().keys() - metrics.keys() == {"kl", "entropy"}


def test_no_tokens_at_all():
    nothing = LossStatistics.measure(
        torch.zeros(()),
        torch.ones(1, 2),
        torch.ones(1, 2),
        torch.zeros(1, 2, dtype=torch.bool),
        parts={"policy_loss": torch.zeros(())},
        clipped=clipped(torch.ones(1, 2), torch.ones(1, 2)),
        kl_NL=torch.ones(1, 2),
        entropy_NL=torch.ones(1, 2),
    )
    assert float(nothing.tokens) == 0.0
    assert nothing.metrics()["gradient_tokens"] == 0.0
    # Nothing to be smallest or largest: added to another part it changes neither.
    assert (nothing + measure()).metrics() == pytest.approx(measure().metrics(), rel=1e-15)


def test_reward_statistics_by_hand():
    # Valid rewards 1, 0, 0.5, 1, 1: mean 0.7; squares 0.09 + 0.49 + 0.04 + 0.09 + 0.09 = 0.8; sample std √(0.8 / 4).
    rewards = torch.tensor([[1.0, 0.0, 0.5], [1.0, 1.0, math.nan]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True], [True, True, False]])
    # Valid advantages 1, −1, 0, 0, 0: mean 0, sample std √(2 / 4).
    advantages = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = {
        "reward_mean": 0.7,
        "reward_std": math.sqrt(0.2),
        "advantage_std": math.sqrt(0.5),
        "zero_signal_groups": 1 / 2,
        "unscored": 1 / 6,
    }
    assert reward_statistics(rewards, advantages, valid) == pytest.approx(expected, rel=1e-7)


def test_reward_statistics_of_one_or_no_scored_completion():
    rewards, advantages = torch.tensor([[3.0, math.nan]]), torch.zeros(1, 2)
    one = reward_statistics(rewards, advantages, torch.tensor([[True, False]]))
    assert one == {
        "reward_mean": 3.0,
        "reward_std": 0.0,
        "advantage_std": 0.0,
        "zero_signal_groups": 1.0,
        "unscored": 0.5,
    }
    none = reward_statistics(rewards, advantages, torch.tensor([[False, False]]))
    assert math.isnan(none.pop("reward_mean"))
    assert math.isnan(none.pop("reward_std"))
    assert none == {"advantage_std": 0.0, "zero_signal_groups": 1.0, "unscored": 1.0}
