"""Surrogates, the entropy bonus and the sampler correction, by hand, with their statistics."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.core import policy_loss

RATIOS = (0.5, 1.0, 1.5, 8.0)


def outcome(advantage: float, **options) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient by logp and metrics of four tokens with the ratios above; logp = −1 of all."""
    logp = torch.full((1, 4), -1.0, dtype=torch.float64, requires_grad=True)
    old = -1.0 - torch.tensor([RATIOS], dtype=torch.float64).log()
    advantages = torch.full((1, 4), advantage, dtype=torch.float64)
    loss, statistics = policy_loss(logp, old, advantages, old < 9, denominator=1.0, aggregate="token", **options)
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad[0].tolist(), statistics.metrics()


def test_clip_with_a_cap_stops_a_bad_token_that_grew_likely() -> None:
    loss, gradient, metrics = outcome(-2.0, surrogate="clip", cap=3.0)
    assert loss == pytest.approx(2.0 * (0.8 + 1.0 + 1.5 + 3.0))
    assert gradient == pytest.approx([0.0, 2.0, 3.0, 0.0])
    assert (metrics["clip_low"], metrics["clip_high"], metrics["capped"]) == (0.25, 0.0, 0.25)
    without, gradient, metrics = outcome(-2.0, surrogate="clip")
    assert without == pytest.approx(2.0 * (0.8 + 1.0 + 1.5 + 8.0))
    assert gradient[3] == pytest.approx(16.0)
    assert metrics["capped"] == 0.0
    # The cap is for negative advantages: a good token is held by the upper clip alone.
    assert outcome(2.0, surrogate="clip", cap=3.0)[:2] == outcome(2.0, surrogate="clip")[:2]


def test_weight_leaves_every_token_its_gradient() -> None:
    loss, gradient, metrics = outcome(2.0, surrogate="weight", cap=5.0)
    assert loss == pytest.approx(2.0 * (0.5 + 1.0 + 1.5 + 5.0))  # −w·A·logp with logp = −1
    assert gradient == pytest.approx([-1.0, -2.0, -3.0, -10.0])
    assert (metrics["clip_low"], metrics["clip_high"], metrics["capped"]) == (0.0, 0.0, 0.25)
    assert outcome(2.0, surrogate="weight")[1][3] == pytest.approx(-16.0)


def test_gate_fades_out_and_is_steeper_for_bad_tokens() -> None:
    def expected(advantage: float, slope: float) -> tuple[float, list[float]]:
        sigma = [1 / (1 + math.exp(-slope * (ratio - 1))) for ratio in RATIOS]
        slopes = [-4 * s * (1 - s) * ratio * advantage for s, ratio in zip(sigma, RATIOS, strict=True)]
        return -4 / slope * advantage * sum(sigma), slopes

    for advantage, slope in ((2.0, 1.0), (-2.0, 1.05)):
        loss, gradient, metrics = outcome(advantage, surrogate="gate")
        value, slopes = expected(advantage, slope)
        assert loss == pytest.approx(value, rel=1e-12)
        assert gradient == pytest.approx(slopes, rel=1e-12)
        assert gradient[1] == pytest.approx(-advantage, rel=1e-12)
        assert metrics["clip_low"] == metrics["clip_high"] == metrics["capped"] == 0.0


def test_plain_and_a_function_of_ones_own() -> None:
    assert outcome(2.0, surrogate="plain")[:2] == (pytest.approx(-22.0), pytest.approx([-1.0, -2.0, -3.0, -16.0]))
    doubled = outcome(2.0, surrogate=lambda ratio, logp, advantages, limits: -2 * ratio * advantages)
    assert doubled[0] == pytest.approx(-44.0)


def test_entropy_takes_its_weight_off_every_token() -> None:
    entropy = torch.tensor([[0.5, 1.0, 1.5, math.nan]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, True, False]])
    flat = torch.zeros(1, 4, dtype=torch.float64)
    loss, _ = policy_loss(flat, flat, flat, mask, denominator=2.0, entropy=entropy, entropy_weight=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(-0.1 * (0.5 + 1.0 + 1.5) / 3 / 2)
    assert entropy.grad is not None
    assert entropy.grad[0].tolist() == pytest.approx([-0.1 / 6] * 3 + [0.0])
    with pytest.raises(ValueError, match="needs entropy"):
        policy_loss(flat, flat, flat, mask, denominator=2.0, entropy_weight=0.1)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        # log-weights 0.5, −0.2, 1.0 in the first row and 0.1 in the second; the cap is 2.
        ("token", [math.exp(0.5), math.exp(-0.2), 2.0, math.exp(0.1)]),
        ("token_mask", [math.exp(0.5), math.exp(-0.2), 0.0, math.exp(0.1)]),
        ("sequence", [2.0, 2.0, 2.0, math.exp(0.1)]),
        ("sequence_mask", [0.0, 0.0, 0.0, math.exp(0.1)]),
    ],
)
def test_a_correction_weighs_the_policy_term_and_not_the_kl(kind: str, weights: list[float]) -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    sampler = old - torch.tensor([[0.5, -0.2, 1.0], [0.1, math.nan, 3.0]], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def gradient(beta: float, correction: str) -> tuple[list[float], dict[str, float]]:
        logp = old.clone().requires_grad_()
        loss, statistics = policy_loss(
            logp,
            old,
            advantages,
            mask,
            denominator=1.0,
            aggregate="token",
            beta=beta,
            ref_logp=old - 0.3,
            sampler_logp=sampler,
            correction=correction,
            correction_cap=2.0,
        )
        loss.backward()
        assert logp.grad is not None
        return logp.grad[mask].tolist(), statistics.metrics()

    found, metrics = gradient(0.0, kind)
    assert found == pytest.approx([-weight * sign for weight, sign in zip(weights, (1, 1, 1, -1), strict=True)])
    assert metrics["corrected"] == (0.75 if kind.startswith("sequence") else 0.25)
    plain, metrics = gradient(0.0, "none")
    assert "corrected" not in metrics
    by_kl = [a - b for a, b in zip(gradient(0.7, "none")[0], plain, strict=True)]
    assert gradient(0.7, kind)[0] == pytest.approx([a + b for a, b in zip(found, by_kl, strict=True)])
