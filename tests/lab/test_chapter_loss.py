"""Chapter 4: what its page shows, against numbers worked out by hand and against the trainer."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
import torch

from grpo.config.presets import PRESETS
from grpo.core import token_loss
from grpo.errors import GrpoError
from grpo.lab.chapters import clipping, distance, loss, source, trl_config
from grpo.lab.chapters.own_group import parse_inputs, train_on_group
from grpo.lab.tokens import Traced

ask = loss.ANSWERS


# Ratio and clip.


def test_the_ratio_explorer_by_hand():
    """0.30 → 0.45 with A = 1: ρ = 1.5, clipped at 1.2, so the value is 1.2 and no gradient is left."""
    found = ask["ratio"]({})
    assert found["ratio"] == pytest.approx(1.5)
    assert (found["value"], found["push"], found["held"]) == (pytest.approx(1.2), 0.0, True)
    assert found["edges"] == pytest.approx((0.24, 0.36))
    # The other sign: a wrong answer that became likelier is pushed down, by ρ·|A|, however far it is outside.
    found = ask["ratio"]({"advantage": "-1"})
    assert (found["value"], found["push"], found["held"]) == (pytest.approx(-1.5), pytest.approx(-1.5), False)


def test_regions_of_the_clip():
    """The gradient is gone in two of six regions: where the ratio has already gone the way the advantage asks."""
    held = [(row["sign"], row["where"]) for row in ask["clip"]({})["regions"] if row["held"]]
    assert held == [(1.0, "above"), (-1.0, "below")]
    # Without a clip, none.
    assert not any(row["held"] for row in ask["clip"]({"surrogate": "plain"})["regions"])


def test_the_push_is_the_slope_of_the_value():
    """∂/∂logp = ρ ∂/∂ρ, by finite differences of the curve, away from its corners."""
    curve = ask["clip"]({"surrogate": "gate", "advantage": "-1.3"})["curve"]
    step = curve["ratio"][1] - curve["ratio"][0]
    for i in range(1, len(curve["ratio"]) - 1):
        slope = (curve["value"][i + 1] - curve["value"][i - 1]) / (2 * step)
        assert curve["push"][i] == pytest.approx(curve["ratio"][i] * slope, abs=2e-3)


def test_cards():
    assert [(c["ratio"], c["push_up"], c["push_down"]) for c in ask["cards"]({})] == [
        (1.0, pytest.approx(1.0), pytest.approx(-1.0)),
        (1.5, 0.0, pytest.approx(-1.5)),
        (0.5, pytest.approx(0.5), 0.0),
    ]


def test_recorded_ratios_overshoot_the_clip():
    found = ask["histogram"]({})
    ratio, advantage = clipping.recorded_ratios()
    assert found["tokens"] == len(ratio) == found["still"] + sum(bin["count"] for bin in found["bins"])
    assert found["largest"] > found["limits"][1]
    assert found["smallest"] < found["limits"][0]
    assert found["clip_low"] == ((ratio < 0.8) & (advantage < 0)).sum()
    assert found["clip_high"] == ((ratio > 1.2) & (advantage > 0)).sum()
    assert found["clip_low"] + found["clip_high"] < found["outside_with_signal"]


def test_a_clip_fraction_by_comparison_is_wrong_three_ways():
    """Tokens 0.7, 0.9, 1, 1.1, 1.5. A = 0: nothing can be clipped. A = −1: only 0.7 is; A = 1: only 1.5."""
    assert (ask["fraction"]({})["by_comparison"], ask["fraction"]({})["by_gradient"]) == (1.0, 0.0)
    below = ask["fraction"]({"advantage": "-1"})
    assert (below["by_comparison"], below["by_gradient"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert [push == 0 for push in below["pushes"]] == [True, False, False, False, False]
    assert below["rounding"] > 0.05


def test_one_ratio_for_a_completion_by_hand():
    """20 tokens moved by 0.02, one of them by 0.5 more: the mean is 0.045, the sum 0.9."""
    found = ask["levels"]({})
    assert found["sequence_ratio"] == pytest.approx(math.exp(0.045))
    assert found["product_ratio"] == pytest.approx(math.exp(0.9))
    assert found["product_held"] is True
    assert [push == 0 for push in found["token_pushes"]].count(True) == 1
    # One number for all: exp(0.045)·A / 20 on every token.
    assert found["sequence_pushes"] == pytest.approx([math.exp(0.045) / 20] * 20)


# KL.


def test_estimates_of_one_token_by_hand():
    """p = 0.5, q = 0.25: d = log 2. k1 = d, k2 = d²/2, k3 = 1/2 + d − 1. Slopes by logp: 1, d, 1 − 1/2."""
    found = ask["kl"]({"policy": "0.5", "reference": "0.25", "beta": "0.1"})["kinds"]
    d = math.log(2)
    assert [found[kind]["value"] for kind in ("k1", "k2", "k3")] == pytest.approx([d, d * d / 2, d - 0.5])
    assert [found[kind]["slope"] for kind in ("k1", "k2", "k3")] == pytest.approx([1.0, d, 0.5])
    assert found["k3"]["penalty"] == pytest.approx(0.1 * (d - 0.5))
    assert found["k3"]["pull"] == pytest.approx(-0.05)


def test_which_gradient_each_estimate_has():
    found = ask["bars"]({"policy": "0.5,0.5", "reference": "0.25,0.75"})
    assert found["reverse"] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert found["forward"] == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert {kind: one["matches"] for kind, one in found["estimates"].items()} == {
        "k1": "nothing",
        "k2": "reverse",
        "k3": "forward",
        "k3_ratio": "reverse",
    }
    # As values, k1 and k3 are both right on average, and k2 is not.
    assert found["estimates"]["k1"]["mean"] == pytest.approx(found["reverse"])
    assert found["estimates"]["k3"]["mean"] == pytest.approx(found["reverse"])
    assert found["estimates"]["k2"]["mean"] != pytest.approx(found["reverse"], rel=1e-3)
    # The forward gradient by the logits is p − q.
    assert found["gradients"]["forward"] == pytest.approx([0.25, -0.25])


def test_bars_that_are_equal_have_no_distance():
    found = ask["bars"]({"policy": "0.2,0.8", "reference": "0.2,0.8"})
    assert (found["reverse"], found["forward"]) == (0.0, 0.0)
    assert {one["matches"] for one in found["estimates"].values()} == {"nothing"}


def test_drift_is_held_by_k3_and_not_by_k1():
    """KL(policy ‖ reference) of a policy that always answers right is −log of the reference's probability of it."""
    held, k1 = (ask["drift"]({"beta": "1", "kl": kl, "seeds": "1"}) for kl in ("k3", "k1"))
    free, with_k3 = held["ends"]
    _, with_k1 = k1["ends"]
    assert held["ceiling"] == pytest.approx(-math.log(float(distance.reference_logits().softmax(0)[distance.RIGHT])))
    assert 0.95 * held["ceiling"] < free["reverse"] < held["ceiling"]
    assert with_k3["reverse"] < 0.5 * free["reverse"]
    assert with_k1["reverse"] == pytest.approx(free["reverse"], abs=0.02)


# The whole loss.


def test_aggregation_by_hand():
    """Lengths 4 and 16, A = ±1. Per completion: 1/(2·4), 1/(2·16). Per token: 1/20. Constant: 1/(2·40)."""
    rows = {row["aggregate"]: row["per_token"] for row in ask["aggregation"]({})["rows"]}
    assert rows["sequence"] == pytest.approx([0.125, -0.03125])
    assert rows["token"] == pytest.approx([0.05, -0.05])
    assert rows["constant"] == pytest.approx([0.0125, -0.0125])


def test_every_preset_pushes_alike_at_ratio_one():
    found = ask["identity"]({"advantage": "-0.75"})
    assert {row["preset"] for row in found["rows"]} == set(PRESETS)
    assert [row["push"] for row in found["rows"]] == pytest.approx([-0.75] * len(PRESETS))
    assert found["plain"] == pytest.approx(-0.75)


def test_the_readers_tokens_add_up_to_the_trainers_loss():
    query = {"updates": "4", "lr": "0.001"}
    found = ask["own"](query)
    assert [row["reward"] for row in found["rows"]] == [1.0, 1.0, 0.0, 0.0]
    # Rewards 1, 1, 0, 0: mean 1/2, sample deviation √(1/3).
    assert found["rows"][0]["advantage"] == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-4), rel=1e-5)
    assert found["sum_of_shares"] == pytest.approx(found["trainer_loss"], rel=1e-5)
    assert found["trainer_loss"] != 0
    assert any(clip for row in found["rows"] for clip in row["values"]["clip"])


def test_one_update_has_ratio_one_and_loss_zero_and_a_gradient():
    [update] = ask["own"]({"updates": "1", "beta": "0"})["updates"]
    assert (update["ratio_min"], update["ratio_max"]) == (1.0, 1.0)
    assert update["clip_low"] == update["clip_high"] == 0.0
    assert update["loss"] == pytest.approx(0.0, abs=1e-6)
    assert update["grad_norm"] > 0.1


def test_a_worked_token_is_its_share():
    query = {"updates": "3", "sample": "1", "token": "2"}
    worked, inputs = ask["token"](query), parse_inputs(query)
    traced = Traced(train_on_group(inputs).rows[1], asdict(inputs.loss))
    assert worked["piece"] == "2"
    assert worked["share"] == token_loss(2, **traced.inputs)
    by_hand = (worked["surrogate"] + worked["beta"] * worked["kl"]) * worked["weight"] / worked["denominator"]
    assert worked["share"] == pytest.approx(by_hand)
    assert worked["ratio"] == pytest.approx(math.exp(worked["logp"] - worked["old"]))


def test_fifty_lines_are_the_trainers_loss():
    for query in ({}, {"updates": "6", "lr": "0.001", "low": "0.1", "beta": "0.3"}):
        found = ask["fifty"](query)
        assert found["fifty"] == pytest.approx(found["trainer"], rel=1e-4)


def test_a_group_without_spread_takes_no_update():
    found = ask["own"]({"texts": "1\n2"})
    assert (found["signal"], found["updates"], found["sum_of_shares"]) == (False, [], 0.0)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"texts": "abc\n12"}, "does not have .abc."),
        ({"texts": "12"}, "2 to 8 lines"),
        ({"prompt": "hello"}, "three two-digit numbers"),
        ({"updates": "2.5"}, "whole number"),
        ({"beta": "nan"}, "between 0 and 2"),
        ({"kl": "k9"}, "expected one of k1"),
    ],
)
def test_bad_input_is_one_line(query, reason):
    with pytest.raises(GrpoError, match=reason):
        ask["own"](query)


def test_sources_are_shown_of_the_functions_that_answer():
    assert "def policy_loss(" in source("loss", "policy_loss")["text"]
    assert all(source("loss", key)["text"] for key in loss.SOURCES)


# TRL.


def test_trl_reads_the_fields_we_write():
    trl = pytest.importorskip("trl")
    known = set(trl.GRPOConfig.__dataclass_fields__)
    for name in PRESETS:
        assert set(ask["trl"]({"algorithm": name})["fields"]) <= known, name


def test_trl_fields_by_hand():
    fields, missing = trl_config.trl_fields(PRESETS["dapo"].settings, 0.0)
    assert (fields["loss_type"], fields["epsilon"], fields["epsilon_high"]) == ("dapo", 0.2, 0.28)
    assert len(missing) == 2
    text = ask["trl"]({"beta": "0.1", "updates": "2"})
    assert text["command"] == "grpo train --algorithm grpo --group-size 8 --loss.beta 0.1 --optimizer.epochs 2"
    assert "num_iterations=2" in text["text"]


def test_rows_of_one_token_are_the_engines_own():
    value, push = clipping.at_ratio(torch.tensor([2.0]).double(), torch.tensor([-1.0]).double(), cap=1.5)
    assert (float(value), float(push)) == (-1.5, 0.0)  # dual clip: no lower than cap · A
