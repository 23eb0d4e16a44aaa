"""KL estimates: by hand, in expectation over a small vocabulary, and where floating point loses digits."""

import math
from decimal import Decimal, getcontext

import pytest
import torch

from grpo.core import kl_estimate

KINDS = ("k1", "k2", "k3")


def test_by_hand():
    # logp −1, ref −1.5: k1 = 0.5; k2 = 0.25 / 2; k3 = e^−0.5 + 0.5 − 1.   logp −1.5, ref −1: k3 = e^0.5 − 0.5 − 1.
    logp = torch.tensor([-1.0, -1.5, -2.0], dtype=torch.float64)
    ref = torch.tensor([-1.5, -1.0, -2.0], dtype=torch.float64)
    assert kl_estimate(logp, ref, "k1").tolist() == [0.5, -0.5, 0.0]
    assert kl_estimate(logp, ref, "k2").tolist() == [0.125, 0.125, 0.0]
    expected = [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 0.0]
    assert kl_estimate(logp, ref, "k3").tolist() == pytest.approx(expected, rel=1e-14)


def test_k3_is_the_default():
    logp, ref = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert kl_estimate(logp, ref).equal(kl_estimate(logp, ref, "k3"))


@pytest.mark.parametrize("difference", ["1e-9", "-1e-9", "1e-6", "-3e-5", "0.01"])
def test_k3_keeps_its_digits_close_to_the_reference(difference):
    """k3 is about d²/2 there; exp(d) − d − 1 computed as written would be rounding noise, often negative."""
    getcontext().prec = 50
    d = Decimal(float(difference))
    exact = d.exp() - d - 1
    logp, ref = torch.zeros(1, dtype=torch.float64), torch.tensor([float(difference)], dtype=torch.float64)
    found = kl_estimate(logp, ref, "k3").item()
    assert found == pytest.approx(float(exact), rel=1e-6)
    assert found > 0


def test_derivatives():
    # By logp: k1′ = 1; k2′ = logp − ref; k3′ = 1 − exp(ref − logp).
    for logp_value, ref_value in ((-1.0, -1.5), (-1.5, -1.0), (-0.3, -0.3)):
        expected = {
            "k1": 1.0,
            "k2": logp_value - ref_value,
            "k3": 1 - math.exp(ref_value - logp_value),
        }
        for kind in KINDS:
            logp = torch.tensor(logp_value, dtype=torch.float64, requires_grad=True)
            ref = torch.tensor(ref_value, dtype=torch.float64)
            (gradient,) = torch.autograd.grad(kl_estimate(logp, ref, kind), logp)
            assert gradient.item() == pytest.approx(expected[kind], rel=1e-13, abs=1e-15), kind


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    logp = torch.linspace(-3, -0.1, 8, dtype=torch.float64, requires_grad=True)
    ref = torch.linspace(-0.2, -2.5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: kl_estimate(a, b, kind), (logp, ref))


def policy_and_reference():
    """Softmax distributions over five tokens; expectations are sums, so nothing is sampled."""
    logits = torch.tensor([0.3, -1.2, 0.8, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    ref_logp = torch.log_softmax(torch.tensor([1.0, 0.5, -0.3, 0.2, 0.9], dtype=torch.float64), dim=0)
    return logits, torch.log_softmax(logits, dim=0), ref_logp


def test_expected_values():
    """k1 and k3 are unbiased estimates of KL(policy ‖ reference); k2 is not."""
    _, logp, ref_logp = policy_and_reference()
    reverse = sum(p * (math.log(p) - r) for p, r in zip(logp.exp().tolist(), ref_logp.tolist(), strict=True))
    expected = {kind: (logp.exp() * kl_estimate(logp, ref_logp, kind)).sum().item() for kind in KINDS}
    assert expected["k1"] == pytest.approx(reverse, rel=1e-13)
    assert expected["k3"] == pytest.approx(reverse, rel=1e-13)
    assert abs(expected["k2"] - reverse) > 0.01


def test_expected_gradients():
    """As a loss on the policy's own samples: k1 pushes nowhere, k2 down the reverse KL, k3 down the forward KL.

    By the softmax's derivative, with p the policy and q the reference:
    ∂ KL(p‖q) / ∂ logit_i = p_i (log p_i − log q_i − KL(p‖q)) and ∂ KL(q‖p) / ∂ logit_i = p_i − q_i.
    """
    logits, logp, ref_logp = policy_and_reference()
    p, log_p, log_q = logp.exp().tolist(), logp.tolist(), ref_logp.tolist()
    reverse = sum(p_i * (a - b) for p_i, a, b in zip(p, log_p, log_q, strict=True))
    expected = {
        "k1": [0.0] * 5,
        "k2": [p_i * (a - b - reverse) for p_i, a, b in zip(p, log_p, log_q, strict=True)],
        "k3": [p_i - math.exp(b) for p_i, b in zip(p, log_q, strict=True)],
    }
    for kind in KINDS:
        loss = (logp.exp().detach() * kl_estimate(logp, ref_logp, kind)).sum()
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert gradient.tolist() == pytest.approx(expected[kind], rel=1e-12, abs=1e-15), kind


def test_what_it_refuses():
    with pytest.raises(ValueError, match="unknown KL estimate 'k4': k1, k2 or k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
