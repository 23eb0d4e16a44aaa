"""Chapter 7: listings beside the engine, exact drift, the clinic's records, and the config's own numbers."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.config import Config
from grpo.errors import GrpoError
from grpo.lab.chapters import answer
from grpo.lab.chapters.clinic import CAUSES, PATIENTS, TRIALS
from grpo.lab.chapters.listings import listed_clip_fraction
from grpo.lab.chapters.smoothness import about, jump
from grpo.lab.chapters.train import TRIALS as ALL
from grpo.lab.trials.recorded import recorded
from grpo.record.diagnosis import KINDS


def test_the_listings_clip_fraction_counts_what_teaches_nothing() -> None:
    """A = 0: 0/0 is not a number, which differs from 1; a listing calls that clipped."""
    assert listed_clip_fraction(torch.tensor([1.0]), torch.tensor([0.0]), 0.2).item() == 1.0
    found = answer("train", "clip_fractions", {})
    by_case = {(row["ratio"], row["advantage"]): (row["listed"], row["trainer"]) for row in found["rows"]}
    assert by_case[1.0, 0.0] == (1.0, 0.0)
    assert by_case[1.5, 1.0] == (1.0, 1.0)
    assert by_case[1.5, -1.0] == (1.0, 0.0), "outside the range, and yet pushed"
    assert by_case[0.5, 1.0] == (1.0, 0.0)
    assert by_case[0.5, -1.0] == (1.0, 1.0)
    assert [row["push"] for row in found["rows"] if row["ratio"] == 1.5] == pytest.approx([0.0, -1.5])


def test_k1_as_a_loss_pulls_nowhere() -> None:
    found = answer("train", "penalty", {})
    assert found["k1"] == pytest.approx([0, 0, 0], abs=1e-12)
    # By hand for k3, the forward KL's gradient p − ref: softmax of (log .5 + 1, log .3, log .2).
    p = [0.5 * math.e, 0.3, 0.2]
    p = [value / sum(p) for value in p]
    assert found["k3"] == pytest.approx([p[0] - 0.5, p[1] - 0.3, p[2] - 0.2])


def test_a_sequences_ratio_is_a_product() -> None:
    found = answer("train", "sequence", {"tokens": "10", "percent": "2"})
    assert found["sequence_ratio"] == pytest.approx(1.02**10)
    assert 1.02 ** found["tokens_to_clip"] == pytest.approx(1.2)


def test_a_step_after_every_completion_is_many_steps() -> None:
    found = answer("train", "each", {"epochs": "4"})
    assert (found["each"]["updates"], found["batch"]["updates"]) == (32, 4)
    assert found["each"]["ratio_max"] > found["batch"]["ratio_max"] > 1.2
    one = answer("train", "each", {"epochs": "1"})["batch"]
    assert one["clipped"] == 0, "the first update of a batch clips nothing"


def test_dropout_alone_moves_ratios() -> None:
    still, moved = answer("train", "modes", {"dropout": "0"}), answer("train", "modes", {"dropout": "0.1"})
    assert still["ratio_min"] == still["ratio_max"] == 1.0
    assert moved["ratio_min"] < 1 < moved["ratio_max"]
    assert abs(answer("train", "mean_advantage", {})["mean"]) < 1e-15


def test_drift_by_beta() -> None:
    """Without β the best answer takes all; k1 is as good as none; a strong pull ends where p ∝ ref·exp(r/β)."""
    free, k1 = answer("train", "drift", {"beta": "0"}), answer("train", "drift", {"beta": "0.5", "kl": "k1"})
    assert [row["reverse"] for row in k1["rows"]] == pytest.approx([row["reverse"] for row in free["rows"]])
    assert free["rows"][-1]["reward"] > 0.98
    pulled = answer("train", "drift", {"beta": "1", "kl": "k2", "steps": "400", "lr": "1"})
    weights = [p * math.exp(r) for p, r in zip((0.35, 0.25, 0.2, 0.15, 0.05), (0, 0.2, 0.4, 0.1, 1), strict=True)]
    assert pulled["probabilities"] == pytest.approx([w / sum(weights) for w in weights], abs=1e-4)


def test_exact_ascent_ends_at_the_best_answer() -> None:
    found = answer("train", "convergence", {})["ways"]
    assert all(rows[0]["reward"] == pytest.approx(0.25) for rows in found.values())
    assert all(rows[-1]["reward"] > 0.97 for rows in found.values())


def test_hyperparameters_are_the_configs_own() -> None:
    rows = {row["setting"]: row for row in answer("train", "hyperparameters", {})}
    config = Config()
    assert rows["group_size"]["default"] == config.group_size
    assert rows["loss.beta"]["default"] == config.loss.beta == 0.04
    assert rows["optimizer.epochs"]["default"] == config.optimizer.epochs == 1
    for row in rows.values():
        assert all(each["source"] for each in row["reported"])


def test_smoothness_by_hand() -> None:
    assert jump([0.0, 0.3, 0.0, 0.4]) == pytest.approx(math.sqrt((0.09 + 0.09 + 0.16) / 3))
    curve = {"value": [0.5, 0.5, 0.5]}
    arm = {"label": "x", "curves": {"reward_mean": [curve, curve], "grad_norm": [{"value": [1.0, 3.0]}] * 2}}
    found = about(arm, 128)
    assert found["jump"] == 0
    assert found["floor"] == pytest.approx(math.sqrt(2 * 0.25 / 128))
    assert found["grad_spread"] == pytest.approx(math.sqrt(2) / 2)
    assert found["luck"] is None, "nothing moved"
    lucky = {**arm, "curves": {**arm["curves"], "reward_mean": [{"value": [0.5, 0.625, 0.5]}] * 2}}
    floor = (2 * math.sqrt(2 * 0.25 / 128) + math.sqrt(2 * 0.625 * 0.375 / 128)) / 3
    assert about(lucky, 128)["luck"] == pytest.approx(floor**2 / 0.125**2)


def test_rules_of_thumb_beside_the_recorded_arms() -> None:
    rows = {row["metric"]: row for row in answer("train", "rules", {})}
    kept = recorded("dashboard")
    assert kept is not None
    default, *_ = kept["outcome"]["arms"]
    bands = [point["mean"] for point in default["bands"]["kl"]]
    assert rows["kl"]["base"]["whole"] == pytest.approx(sum(bands) / 60)
    assert rows["kl"]["base"]["late"] == pytest.approx(sum(bands[40:]) / 20)
    assert rows["kl"]["changed"]["late"] < rows["kl"]["base"]["late"], "a larger beta stays closer"
    groups = rows["zero_signal_groups"]
    assert groups["changed"]["jump"] > 2 * groups["base"]["jump"], "with as many answers, fewer prompts are less steady"
    passes = rows["reward_mean"]
    assert passes["changed"]["whole"] > passes["base"]["whole"], "more passes rise sooner"
    assert passes["changed"]["late"] < passes["base"]["late"], "and end lower"


def test_every_trial_is_recorded() -> None:
    for name in ALL:
        assert recorded(name) is not None, f"python scripts/record_trials.py {name}"


def test_one_update_clips_nothing_and_has_no_loss_to_speak_of() -> None:
    kept = recorded("updates")
    assert kept is not None
    one, four, _ = kept["outcome"]["arms"]
    assert all(point["mean"] == 0 for name in ("clip_low", "clip_high") for point in one["bands"][name])
    assert all(point["mean"] == pytest.approx(1, abs=1e-6) for point in one["bands"]["ratio_max"])
    assert max(abs(point["mean"]) for point in one["bands"]["loss"]) < 0.1
    assert one["bands"]["reward_mean"][-1]["mean"] - one["bands"]["reward_mean"][0]["mean"] > 0.3
    assert max(point["mean"] for point in four["bands"]["clip_high"]) > 0


def test_what_the_dashboard_says_was_measured() -> None:
    kept = recorded("dashboard")
    assert kept is not None
    after = {arm["label"]: arm["accuracy"]["after"]["mean"] for arm in kept["outcome"]["arms"]}
    base = after["ε 0.2, β 0.04, G 8"]
    assert after["G 32"] < base - 0.05, "more prompts beat larger groups"
    assert abs(after["ε 0.02"] - base) < 0.03
    assert after["β 0.5"] == min(after.values())


def test_what_is_said_of_drift_was_measured() -> None:
    free, usual, strong, renewed = answer("train", "drifted", {})
    assert free["kl"] < 1.2 * free["kl_middle"], "it settles without a penalty too"
    assert free["kl"] == pytest.approx(usual["kl"], rel=0.2)
    assert strong["accuracy"] < usual["accuracy"] - 0.03
    assert renewed["accuracy"] > strong["accuracy"] + 0.03
    grpo, ppo = answer("train", "smoothness", {})
    assert max(grpo["jump"], ppo["jump"]) < 1.1 * min(grpo["jump"], ppo["jump"]), "neither is smoother"


def test_the_clinics_patients_are_diagnosed() -> None:
    assert {kind for each in PATIENTS for kind in each.kinds} <= set(KINDS)
    assert {each.cause for each in PATIENTS} == set(CAUSES)
    assert [each.trial for each in PATIENTS] == list(TRIALS)
    for each in PATIENTS:
        found = answer("train", "diagnosis", {"patient": each.trial})
        assert found["named"] == bool(each.kinds), each.trial
        assert bool(found["findings"]) == bool(each.kinds)
        sick, *_, mended = found["remedies"]
        if each.cause == "temperature":
            assert sick["zero_signal_groups"] > 0.95 > 0.8 > mended["zero_signal_groups"]
            assert sick["kl"] > 3 * mended["kl"]
            assert mended["findings"] == []
        elif each.cause == "reward":
            assert mended["right_share"] > sick["right_share"] + 0.3
        else:
            assert mended["after"] > sick["after"] + 0.2, each.trial
            assert mended["findings"] == []
    with pytest.raises(GrpoError, match="patient"):
        answer("train", "diagnosis", {"patient": "nobody"})
