"""Chapter 3: numbers worked out by hand, and the engine's own by another way."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.core.explain.tabular import expected_estimate, true_gradient
from grpo.errors import GrpoError
from grpo.lab.chapters import answer
from grpo.lab.chapters.ancestors import example, family, moments


def ask(key: str, **query: object) -> dict:
    return answer("advantage", key, {name: str(value) for name, value in query.items()})


def test_the_sliders_six_rewards() -> None:
    """Mean 2.5/6; squares of the differences: 2·(7/12)² + 3·(5/12)² + (1/12)² = 1.20833, over 5: std 0.49160."""
    found = ask("group", of="six")
    assert found["rewards"] == [1, 1, 0, 0, 0, 0.5]
    assert found["mean"] == pytest.approx(5 / 12)
    assert found["std"] == pytest.approx(0.491596, abs=1e-6)
    assert found["std_population"] == pytest.approx(math.sqrt(1.2083333 / 6), abs=1e-6)
    assert found["advantages"]["grpo"][0] == pytest.approx((7 / 12) / (0.491596 + 1e-4), abs=1e-5)
    assert found["advantages"]["mean_only"][5] == pytest.approx(1 / 12)
    assert found["advantages"]["leave_one_out"][0] == pytest.approx(1 - 1.5 / 5)
    assert sum(found["advantages"]["grpo"]) == pytest.approx(0, abs=1e-12)


def test_equal_rewards_teach_nothing_unless_the_batch_is_the_baseline() -> None:
    found = ask("group", rewards="1,1,1,1")
    assert found["statistics"]["zero_signal_groups"] == 1
    assert set(found["advantages"]["grpo"]) == {0.0}
    assert found["advantages"]["batch"][0] > 0


def test_the_same_reward_among_others() -> None:
    """0.7 among siblings of mean 0.9/7 and 6.3/7."""
    found = ask("same")
    assert found["weak"]["advantages"][0] > 2
    assert found["strong"]["advantages"][0] < -1


def test_std_by_either_convention() -> None:
    """One right of G: by the population √(G−1), by the sample (G−1)/√G; at G = 1 the sample's is not a number."""
    rows = answer("advantage", "std", {})
    for row in rows[1:]:
        size = row["group_size"]
        assert row["population"] == pytest.approx(math.sqrt(size - 1))
        assert row["sample"] == pytest.approx((size - 1) / math.sqrt(size))
        assert row["trainer"] == pytest.approx(row["sample"], rel=3e-4)
    assert (rows[1]["population"], round(rows[1]["sample"], 2)) == (1.0, 0.71)
    assert math.isnan(rows[0]["sample"])
    assert rows[0]["trainer"] == 0.0
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert torch.ones(1).std().isnan(), "as torch has it"


def test_two_prompts_and_what_they_pay() -> None:
    """Ten times the pay is ten times the push without a std, and no more with one."""
    plain, paid = ask("prompts"), ask("prompts", pay=10)
    assert plain["ways"]["mean_only"]["push"] == pytest.approx([2 * 7 / 8, 2 * 7 / 8])
    assert paid["ways"]["mean_only"]["push"] == pytest.approx([17.5, 1.75])
    assert paid["ways"]["grpo"]["push"] == pytest.approx(plain["ways"]["grpo"]["push"], rel=3e-4)
    assert plain["ways"]["batch"]["right"][0] == plain["ways"]["batch"]["right"][1], "difficulty no longer counts"


def test_push_by_difficulty() -> None:
    """Without the std Σ|A| = 2k(G−k)/G, most at one half; with it, 2√(k(G−k)(G−1)/G)."""
    for row in answer("advantage", "difficulty", {}):
        k = row["right"]
        assert row["push_without_std"] == pytest.approx(2 * k * (8 - k) / 8)
        assert row["push"] == pytest.approx(2 * math.sqrt(k * (8 - k) * 7 / 8), rel=4e-4)


@pytest.mark.parametrize(
    ("key", "baseline", "scale"),
    [("dr_grpo", "mean", "none"), ("rloo", "leave_one_out", "none"), ("grpo", "mean", "group_std")],
)
def test_exact_means_are_the_cores(key: str, baseline: str, scale: str) -> None:
    logits, rewards = example({})
    mean, _ = moments(logits, rewards, 3, family(0.0)[key].credit)
    assert torch.allclose(mean, expected_estimate(logits, rewards, 3, baseline=baseline, scale=scale))


def test_exact_moments_are_those_of_samples() -> None:
    logits, rewards = example({})
    credit = family(0.0)["grpo"].credit
    mean, variance = moments(logits, rewards, 4, credit)
    torch.manual_seed(0)
    p = logits.softmax(0)
    drawn = torch.multinomial(p.expand(40_000, 3), 4, replacement=True)
    estimates = (credit(rewards[drawn], 0.0)[..., None] * (torch.eye(3).double() - p)[drawn]).mean(1)
    assert torch.allclose(estimates.mean(0), mean, atol=0.01)
    assert float(estimates.var(0).sum()) == pytest.approx(variance, rel=0.03)


def test_bias_of_every_ancestor() -> None:
    """Centred: (1 − 1/G) of the truth; leave-one-out, none, and a critic however wrong: all of it; the std: not."""
    found = ask("ancestors", g=4, critic=0.7)["ancestors"]
    for key in ("reinforce", "actor_critic", "trpo", "ppo", "rloo"):
        assert found[key]["bias"] == pytest.approx(0, abs=1e-12), key
    assert found["dr_grpo"]["length"] == pytest.approx(3 / 4)
    assert found["dr_grpo"]["cosine"] == pytest.approx(1)
    assert found["grpo"]["cosine"] < 0.95
    assert found["ppo"]["variance"] > ask("ancestors", g=4)["ancestors"]["ppo"]["variance"], "a wrong critic scatters"
    rows = answer("advantage", "sizes", {})
    assert [round(row["grpo"]["cosine"], 2) for row in (rows[0], rows[-1])] == [0.89, 0.99]
    assert all(row["dr_grpo"]["length"] == pytest.approx(row["expected"]) for row in rows)


def test_a_trust_region_is_kept() -> None:
    found = ask("ancestors")["trpo"]
    assert 0 < found["kl"] <= found["max_kl"]


def test_a_baseline_changes_no_mean() -> None:
    """Variance of one answer's r∇log p around b is a parabola in b; its foot is not the expected reward exactly."""
    for b in (-1.0, 0.0, 0.4, 2.0):
        found = ask("baseline", b=b)
        assert found["mean"] == pytest.approx(found["true_gradient"])
        assert found["term"] == pytest.approx([0, 0, 0], abs=1e-12)
    logits, rewards = example({})
    assert found["true_gradient"] == pytest.approx(true_gradient(logits, rewards).tolist())


def test_the_recorded_advantages_are_fifteen_values() -> None:
    found = answer("advantage", "histogram", {})
    assert found["values"] == 80 * 16 * 8
    assert len(found["distinct"]) == 15, "two for each of 1 to 7 right of eight, and 0"
    assert sum(each["count"] for each in found["distinct"]) == found["values"]
    assert sum(each["share"] for each in found["bins"]) == pytest.approx(1)
    [middle] = [each for each in found["bins"] if each["low"] < 0 < each["high"]]
    assert (middle["low"], middle["high"], middle["share"]) == (-0.125, 0.125, found["zero"]), "0 has its own bin"
    assert found["mean"] == pytest.approx(0, abs=1e-6)
    values = {round(each["value"], 2) for each in found["distinct"]}
    for row in answer("advantage", "values", {}):
        assert {round(row["above"], 2), round(row["below"], 2)} <= values
    [one, *_] = answer("advantage", "values", {})
    assert (round(one["above"], 2), round(one["below"], 2)) == (2.47, -0.35)


def test_the_groups_mean_is_a_guess() -> None:
    found = ask("mean", p=0.3, g=8)
    assert sum(each["chance"] for each in found["chances"]) == pytest.approx(1)
    assert found["expected"] == pytest.approx(0.3)
    assert found["std"] == pytest.approx(math.sqrt(0.3 * 0.7 / 8))


def test_each_prompts_own_baseline_takes_the_difference_between_prompts_out() -> None:
    found = answer("advantage", "own", {})
    assert found["around_one"] == pytest.approx(found["around_own"] + found["between"])


def test_one_update_on_five_answers() -> None:
    """Two drawn, rewards 1 and 0, no std: A = ±1/2, the loss's gradient by the logits is −(1/2)(e_a − e_b)/2."""
    found = ask("tabular", rewards="1,0,0,0,0", g=2, scale="none", seed=3, lr=1, updates=1)
    before, after = found["trail"]
    gain = [0.0] * 5
    for place, advantage in zip(found["last"]["drawn"], found["last"]["advantages"], strict=True):
        gain[place] += advantage / 2
    moved = [math.log(p) + change for p, change in zip(before, gain, strict=True)]
    expected = [math.exp(value) / sum(map(math.exp, moved)) for value in moved]
    assert after == pytest.approx(expected)


def test_one_update_of_nano() -> None:
    """The right and worked answer rises; the right but direct one falls with its wrong siblings."""
    found = answer("advantage", "nano", {})
    by_text = {row["text"]: row for row in found["completions"]}
    worked, direct = by_text["(14;16)164"], by_text["164"]
    assert worked["advantage"] == direct["advantage"] > 0
    assert worked["after"] > worked["before"]
    assert direct["after"] < direct["before"]
    assert sum(row["times"] for row in found["completions"]) == 8


@pytest.mark.parametrize(
    ("key", "query", "words"),
    [
        ("group", {"rewards": "1,x"}, "expected a number"),
        ("group", {"rewards": "2"}, "between 0 and 1"),
        ("group", {"of": "seven"}, "one of run, six"),
        ("ancestors", {"g": "2.5"}, "whole number"),
        ("ancestors", {"p": "1,0"}, "p: must be between"),
        ("nano", {"prompt": "2+2="}, "three two-digit numbers"),
    ],
)
def test_bad_values_are_told(key: str, query: dict[str, str], words: str) -> None:
    with pytest.raises(GrpoError, match=words):
        answer("advantage", key, query)
