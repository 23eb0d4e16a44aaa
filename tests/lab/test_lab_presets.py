"""Runs of every algorithm can be looked at: token lens, worked token and what-if show the numbers of their update."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grpo
from grpo.config import Config, Evaluation, Optimizer, System
from grpo.config.presets import PRESETS
from grpo.config.schema import as_dict
from grpo.config.sections import Loss
from grpo.errors import GrpoError
from grpo.lab.signal import signal_budget
from grpo.lab.tokens import lens, worked
from grpo.lab.whatif import what_if
from grpo.record.store import Run
from grpo.training.credit import credit
from grpo.training.gradient import gradient_token_share
from helpers.records import make_groups

PROMPTS = 4


def settings(folder: Path, algorithm: str, **changes: Any) -> Config:
    base = Config(
        model="nano",
        algorithm=algorithm,
        run="job",
        steps=2,
        prompts_per_step=PROMPTS,
        group_size=4,
        max_new_tokens=24,
        evaluation=Evaluation(every=0, problems=20, probes=0),
        system=System(runs=str(folder), device="cpu", threads=1, token_groups=PROMPTS),
    )
    return replace(base, **changes)


@pytest.fixture(scope="module", params=PRESETS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two steps, one update each, every token recorded."""
    with grpo.train(settings(tmp_path_factory.mktemp("runs"), request.param)) as run:
        yield run


def trained_rows(run: Run, step: int) -> list[dict[str, Any]]:
    rows = [row for row in run.token_arrays(step) if row["trainer_logprobs"] is not None]
    assert rows, "nothing was trained on"
    return rows


def test_the_shares_of_all_tokens_add_up_to_the_recorded_loss(run: Run) -> None:
    losses = dict(run.series("loss"))
    for step in range(2):
        tokens = [
            worked(run, step, row["group_index"], row["sample_index"], place)
            for row in trained_rows(run, step)
            for place in range(len(row["tokens"]))
        ]
        assert sum(token["share"] for token in tokens) == pytest.approx(losses[step], rel=1e-3, abs=2e-6)
        json.dumps(tokens, allow_nan=False)


def slope_of_kl(run: Run, row: dict[str, Any]) -> np.ndarray:
    """β ∂KL/∂logp of each token, by hand, where the divergence is in the loss."""
    loss = run.config["loss"]
    if not loss["beta"] or loss["kl_in"] == "reward":
        return np.zeros(len(row["tokens"]))
    gap = row["trainer_logprobs"].astype(np.float64) - row["ref_logprobs"]
    return loss["beta"] * {"k2": gap, "k3": 1 - np.exp(-gap)}[loss["kl"]]


def test_with_one_update_every_surrogate_pushes_by_the_advantage(run: Run) -> None:
    """At ratio 1 their derivative by logp is −A: −∂loss/∂logp = w / D · (A − β ∂KL/∂logp)."""
    loss = run.config["loss"]
    for row in trained_rows(run, 1):
        answer = lens(run, 1, row["group_index"], row["sample_index"])
        [shown] = [one for one in answer["rows"] if one["sample"] == row["sample_index"]]
        weight = 1 / len(row["tokens"]) if loss["aggregate"] == "sequence" else 1.0
        push = weight / row["denominator"] * (row["advantages"] - slope_of_kl(run, row))
        assert shown["values"]["push"] == pytest.approx(push, rel=1e-5, abs=1e-9)
        assert set(shown["values"]["ratio"]) == {1.0}
        clipped = shown["values"]["clip"]
        assert clipped is None if loss["surrogate"] != "clip" else set(clipped) == {0}


def test_limits_are_those_of_the_surrogate(run: Run) -> None:
    row = trained_rows(run, 0)[0]
    token = worked(run, 0, row["group_index"], row["sample_index"], 0)
    loss = run.config["loss"]
    if loss["surrogate"] == "clip":
        assert token["limits"] == (1 - loss["clip_low"], 1 + loss["clip_high"])
        assert token["clipped_ratio"] == 1.0
    else:
        assert (token["limits"], token["clipped_ratio"], token["clip"]) == (None, None, None)
    assert token["cap"] == (5.0 if run.config["algorithm"] == "cispo" else 0.0)
    assert token["beta"] == (loss["beta"] if loss["kl_in"] == "loss" else 0.0)
    by_hand = {
        "weight": -token["advantage"] * token["logp"],
        "gate": -2 * token["advantage"] / (token["gate"] or 1),  # (4/τ) σ(0) A
    }
    earned = by_hand.get(loss["surrogate"], -token["advantage"])
    assert token["surrogate"] == pytest.approx(earned, rel=1e-6, abs=1e-9)


def test_what_if_nothing_changes(run: Run) -> None:
    losses = dict(run.series("loss"))
    for step in range(2):
        answer = what_if(run, step, {})
        for group in answer["groups"]:
            for done in group["completions"]:
                assert done["advantage"] == pytest.approx(done["recorded"]["advantage"], rel=1e-4, abs=1e-5)
                assert done["weight"] == done["weight_before"]
        assert answer["traced"]["now"]["loss"] == pytest.approx(losses[step], rel=1e-3, abs=2e-6)
        from_critic = [note for note in answer["notes"] if "a critic's values" in note]
        assert len(answer["notes"]) == len(from_critic) == (run.config["algorithm"] == "ppo")


def test_every_preset_offered_can_be_asked_for(run: Run) -> None:
    """REINFORCE's advantages by hand: a reward less the mean of the step's, and every token weighs 1 / all tokens."""
    presets = what_if(run, 0, {})["presets"]
    assert set(PRESETS) - set(presets) == {"ppo"}, "a critic's values are not recorded"
    fields = ("baseline", "scale", "surrogate", "aggregate", "kl", "kl_in", "beta", "overlong", "cap", "ratio")
    fields += ("turn_weight", "turn_gamma")
    answers = {
        name: what_if(run, 0, {field: str(preset[field]) for field in fields}) for name, preset in presets.items()
    }
    json.dumps(answers, allow_nan=False)
    completions = [done for group in run.groups(0) for done in group["completions"]]
    mean = sum(done["reward"] for done in completions) / len(completions)
    tokens = sum(done["length"] for done in completions)
    shown = [done for group in answers["reinforce"]["groups"] for done in group["completions"]]
    for done, found in zip(completions, shown, strict=True):
        assert found["advantage"] == pytest.approx(done["reward"] - mean, abs=1e-6)
        assert found["weight"] == pytest.approx((done["reward"] - mean) / tokens, abs=1e-8)


@pytest.mark.parametrize("algorithm", ["dr_grpo", "gspo", "cispo", "sapo", "opo"])
def test_with_two_updates_the_push_follows_the_ratio(algorithm: str, tmp_path: Path) -> None:
    """−∂loss/∂logp by hand, for each way in which the ratio counts; the second update is the one recorded."""
    twice = Optimizer(epochs=2)
    with grpo.train(settings(tmp_path, algorithm, steps=1, lr=1e-3, optimizer=twice)) as run:
        loss, ratios = run.config["loss"], []
        for row in trained_rows(run, 0):
            answer = lens(run, 0, row["group_index"], row["sample_index"])
            [shown] = [one for one in answer["rows"] if one["sample"] == row["sample_index"]]
            log_ratio = row["trainer_logprobs"].astype(np.float64) - row["old_logprobs"]
            ratio = np.exp(np.full_like(log_ratio, log_ratio.mean()) if algorithm == "gspo" else log_ratio)
            advantages = row["advantages"].astype(np.float64)
            held = np.where(advantages > 0, ratio > 1 + loss["clip_high"], ratio < 1 - loss["clip_low"])
            tau = np.where(advantages > 0, loss["gate_up"], loss["gate_down"])
            sigma = 1 / (1 + np.exp(-tau * (ratio - 1)))
            counted = {
                "clip": np.where(held, 0.0, ratio),
                "weight": np.minimum(ratio, loss["cap"] or np.inf),
                "gate": 4 * sigma * (1 - sigma) * ratio,
                "plain": ratio,
            }[loss["surrogate"]]
            weight = 1 / len(ratio) if loss["aggregate"] == "sequence" else 1.0
            push = weight / row["denominator"] * counted * advantages
            assert shown["values"]["push"] == pytest.approx(push, rel=1e-6, abs=1e-12)
            if loss["surrogate"] == "clip":
                assert (
                    shown["values"]["clip"]
                    == (held * np.sign(log_ratio if algorithm != "gspo" else ratio - 1)).tolist()
                )
            ratios += ratio.tolist()
        assert max(abs(ratio - 1) for ratio in ratios) > 0.01, "the policy has moved"


def test_a_divergence_that_is_not_recorded_is_left_out_and_told(tmp_path: Path) -> None:
    few = System(runs=str(tmp_path), device="cpu", threads=1, token_groups=1)
    with grpo.train(settings(tmp_path, "rloo", system=few, steps=1)) as run:
        answer = what_if(run, 0, {})
        [note] = answer["notes"]
        assert "--system.token_groups" in note
        for group, shown in zip(run.groups(0), answer["groups"], strict=True):
            rewards = [done["reward"] for done in group["completions"]]
            for reward, done in zip(rewards, shown["completions"], strict=True):
                assert done["advantage"] == pytest.approx(reward - (sum(rewards) - reward) / 3, abs=1e-6)


def test_what_else_is_in_the_loss_is_told(tmp_path: Path) -> None:
    loss = replace(PRESETS["dr_grpo"].settings, entropy=0.01, correction="token", kl="k3_ratio", beta=0.1)
    with grpo.train(settings(tmp_path, "dr_grpo", loss=loss, steps=1)) as run:
        row = trained_rows(run, 0)[0]
        token = worked(run, 0, row["group_index"], row["sample_index"], 0)
        assert [text.rpartition("(")[2] for text in token["left_out"]] == [
            "loss.entropy 0.01)",
            "loss.correction token)",
        ]
        assert token["share"] == pytest.approx((token["surrogate"] + 0.1 * token["kl"]) / token["denominator"])
        assert "does not include the entropy bonus" in what_if(run, 0, {})["notes"][0]


# Rewards of several parts


def two_parts(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"correct": float(sample == group), "format": 0.5 * (sample % 2)}


def recorded(folder: Path, loss: Loss) -> Run:
    config = Config(model="tiny", task="arithmetic", group_size=4, loss=loss)
    run = Run.create(folder, "parts", kind="grpo", config=as_dict(config))
    run.record(0, credit(make_groups(0, rewards=two_parts), config)[0], {}, {})
    return run


@pytest.mark.parametrize("parts", ["sum", "normalise"])
def test_what_if_with_weights_of_parts(parts: Any, tmp_path: Path) -> None:
    loss = replace(PRESETS["dr_grpo"].settings, parts=parts, weights="format=0.2")
    with recorded(tmp_path, loss) as run:
        same = what_if(run, 0, {})
        assert same["recorded_weights"] == {"format": 0.2}
        for group in same["groups"]:
            for done in group["completions"]:
                assert done["advantage"] == pytest.approx(done["recorded"]["advantage"], abs=1e-6)
        assert any("normalised" in note for note in same["notes"]) == (parts == "normalise")
        with pytest.raises(GrpoError, match="unknown part 'style'"):
            what_if(run, 0, {"weight.style": "2"})
        # Group 0: correct 1 for sample 0, format 0.5 for samples 1 and 3. Without weight the format pays nothing.
        [first, *_] = what_if(run, 0, {"weight.format": "0"})["groups"]
        advantages = [done["advantage"] for done in first["completions"]]
        if parts == "sum":
            assert [done["reward"] for done in first["completions"]] == [1.0, 0.0, 0.0, 0.0]
            assert advantages == pytest.approx([0.75, -0.25, -0.25, -0.25])
        else:  # normalised by the group's deviation 0.5, then by the batch's: 16 values, four of 1.5 and twelve of −0.5
            scale = 0.5 * (12 / 15) ** 0.5 / 0.5
            assert advantages == pytest.approx([0.75 / 0.5 / scale, *[-0.25 / 0.5 / scale] * 3], rel=1e-3)


@pytest.mark.parametrize("masks", [False, True])
def test_tokens_with_gradient_are_those_of_the_metric(masks: bool, tmp_path: Path) -> None:
    loss = replace(PRESETS["dr_grpo"].settings, mask_truncated=masks)
    config = Config(model="tiny", task="arithmetic", group_size=4, loss=loss)
    groups = [
        replace(group, completions=(replace(group.completions[0], finish="length"), *group.completions[1:]))
        for group in make_groups(0, rewards=two_parts)
    ]
    with Run.create(tmp_path, "cut", kind="grpo", config=as_dict(config)) as run:
        run.record(0, groups, {}, {})
        [row] = signal_budget(run, 10)["rows"]
    assert (row["tokens"], row["gradient_tokens"]) == (96, 36 if masks else 60)
    assert row["gradient_tokens"] == pytest.approx(96 * gradient_token_share(groups, loss))
