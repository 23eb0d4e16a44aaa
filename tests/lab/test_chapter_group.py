"""Chapter `group`: numbers worked out by hand, exact identities, and agreement with the trainer."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.core import group_advantages
from grpo.core.explain.tabular import expected_estimate, true_gradient
from grpo.errors import GrpoError
from grpo.lab.chapters.group import ANSWERS, _at_temperature, baselines, observed, samples
from grpo.lab.chapters.spread import ESTIMATORS, chance, estimates, group_estimate, group_of_one, sizes


def test_a_sampled_group_is_scored_and_compared() -> None:
    found = samples({"prompt": "29+60+75=", "g": "16", "seed": "5"})
    rewards = torch.tensor([[float(row["extracted"] == "164") for row in found["completions"]]]).double()
    assert [row["reward"] for row in found["completions"]] == rewards[0].tolist()
    assert [row["advantage"] for row in found["completions"]] == group_advantages(rewards)[0].tolist()
    assert found["statistics"]["reward_mean"] == rewards.mean().item()
    assert found["tokens"] == sum(len(row["text"]) + 1 for row in found["completions"])  # one a character, and the end
    again = samples({"prompt": "29+60+75=", "g": "4", "seed": "5"})
    texts = [[row["text"] for row in one["completions"]] for one in (found, again)]
    assert texts[0][:4] == texts[1], "a completion does not depend on its siblings"


@pytest.mark.parametrize("prompt", ["2+2*6=", "1+2+3=", "37+85+46", "", "37+85+46=1"])
def test_what_nano_cannot_read_is_refused_in_one_line(prompt: str) -> None:
    with pytest.raises(GrpoError, match="expected a sum of three two-digit numbers"):
        samples({"prompt": prompt})


def test_the_estimate_of_two_is_worked_out_by_hand() -> None:
    # p = 1/4. Both right (1/16) or both wrong (9/16): 0. One of each (6/16): A = ±1/2, slopes 3/4 and −1/4,
    # so (1/2 · 3/4 + 1/2 · 1/4) / 2 = 1/4.
    assert group_estimate(0.25, 2, "mean") == pytest.approx((6 / 16 / 4, 6 / 16 / 16 - (6 / 64) ** 2))
    # Against the reward itself only right ones push: (both 3/4, one 3/8, none 0).
    assert group_estimate(0.25, 2, "none")[0] == pytest.approx(1 / 16 * 3 / 4 + 6 / 16 * 3 / 8)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("pass_rate", [0.1, 0.5, 0.8])
def test_estimates_agree_with_running_through_all_groups(pass_rate: float, size: int) -> None:
    logits = torch.tensor([math.log(pass_rate / (1 - pass_rate)), 0.0], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    slope = true_gradient(logits, rewards)[0].item()
    for name, (_, settings) in ESTIMATORS.items():
        mean, variance = group_estimate(pass_rate, size, name)
        if settings:
            baseline, scale = settings
            expected = expected_estimate(logits, rewards, size, baseline=baseline, scale=scale)[0].item()
            assert mean == pytest.approx(expected)
        assert variance >= 0
    assert group_estimate(pass_rate, size, "mean")[0] == pytest.approx((1 - 1 / size) * slope)
    for unbiased in ("none", "known", "others"):
        assert group_estimate(pass_rate, size, unbiased)[0] == pytest.approx(slope)


def test_with_the_same_budget_small_groups_are_noisier() -> None:
    rows = {(row["group_size"], row["estimator"]): row for row in estimates({"p": "0.5"})["rows"]}
    # Two completions against each other, p = 1/2: half of the groups say 1/2, half 0, a variance of 1/16. Of 32 groups:
    assert rows[2, "others"]["deviation"] == pytest.approx(1 / (4 * math.sqrt(32)))
    noise = [rows[size, "others"]["deviation"] for size in (2, 4, 8, 16, 32, 64)]
    assert noise == sorted(noise, reverse=True)
    assert rows[2, "mean"]["of_true"] == pytest.approx(0.5)
    assert rows[64, "mean"]["of_true"] == pytest.approx(63 / 64)


def test_sizes_at_one_half() -> None:
    rows = {row["group_size"]: row for row in sizes({"p": "0.5"})["rows"]}
    assert rows[2]["zero_signal"] == 0.5
    assert rows[2]["groups_with_signal"] == 16
    assert rows[4]["zero_signal"] == 2 / 16
    assert rows[64]["baseline_error"] == pytest.approx(1 / 16)
    assert all(row["zero_signal"] == 1 for row in sizes({"p": "1"})["rows"])


def test_a_group_of_one_has_no_sample_deviation() -> None:
    found = group_of_one({"r": "1"})
    assert found["sample_std"] is None
    assert torch.tensor([1.0]).std(correction=0).item() == found["population_std"] == 0
    assert found["advantage"] == 0
    assert "group_size" in found["refusal"]
    assert found["two"]["population"] == 1
    assert [row["factor"] for row in found["conventions"]] == pytest.approx([2**0.5, (8 / 7) ** 0.5, (64 / 63) ** 0.5])
    assert found["two"]["sample"] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))


def test_chance_at_one_half_of_eight() -> None:
    found = chance({"p": "0.5", "g": "8"})
    assert found["zero_signal"] == 2 / 256
    assert found["some_right"] == 255 / 256
    assert found["curve"][0] == {"p": 0.0, "zero_signal": 1.0}


def test_observed_prompts_lie_where_chance_says() -> None:
    found = observed({"g": "8"})
    expected = sum(row["expected"] for row in found["prompts"]) / len(found["prompts"])
    seen = sum(row["observed"] for row in found["prompts"]) / len(found["prompts"])
    groups = 8 * len(found["prompts"])
    assert abs(seen - expected) < 4 * math.sqrt(expected * (1 - expected) / groups)
    first = found["recorded"]["steps"][0]
    assert sum(first["groups_by_right"]) == 16
    right = sum(count * number for number, count in enumerate(first["groups_by_right"]))
    assert first["pass_rate"] == right / 128


def test_temperature_is_the_trainers_and_a_mismatch_shows() -> None:
    same, cold = _at_temperature(1.0, 8), _at_temperature(0.4, 8)
    assert same["gap"] < 1e-5
    assert same["outside"] == 0
    assert cold["gap"] > 0.05
    assert cold["outside"] > 0.1
    assert cold["distinct"] < _at_temperature(2.0, 8)["distinct"]


def test_baselines_split_the_variance() -> None:
    found = baselines({"step": "3"})
    rewards = torch.tensor([group["rewards"] for group in found["groups"]]).double()
    assert found["variance"]["across"] == pytest.approx(rewards.flatten().var().item())
    means = rewards.mean(dim=1, keepdim=True)
    assert found["variance"]["within"] == pytest.approx(((rewards - means) ** 2).sum().item() / (16 * 7))
    with pytest.raises(GrpoError):
        baselines({"step": "80"})


@pytest.mark.parametrize("key", sorted(ANSWERS))
def test_every_answer_has_a_default(key: str) -> None:
    assert ANSWERS[key]({})
