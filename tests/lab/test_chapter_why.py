"""Chapter `why`: the paused update is the trainer's, texts are scored as in training, markers are truly counted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import grpo
from grpo.config import Config, Evaluation, System
from grpo.config.schema import resolve
from grpo.errors import GrpoError
from grpo.lab.chapters.checked import judged, scored_group, verifiable
from grpo.lab.chapters.emergence import aha
from grpo.lab.chapters.nano import fresh_nano, nano
from grpo.lab.chapters.update import PHASES, one_update, paused_update, settings
from grpo.lab.chapters.why import ANSWERS, cards, gap, scratch, stages
from grpo.model.optimizer import make_optimizer
from grpo.model.plan import PRECISIONS, Needs, Work, memory_of, typical_shape


def test_the_paused_update_is_the_trainers(tmp_path: Path) -> None:
    """The same problem through `grpo.train`: every number of the step, and the completions afterwards."""
    config = Config(
        model="nano",
        steps=1,
        prompts_per_step=2,
        group_size=4,
        lr=1e-4,
        max_new_tokens=24,
        checkpoint_every=0,
        evaluation=Evaluation(every=0, problems=4, probes=0),
        system=System(runs=str(tmp_path), threads=1, token_groups=2),
    )
    config = resolve(replace(config, optimizer=replace(config.optimizer, warmup_steps=0)))
    with nano() as before, fresh_nano() as student:
        adam = make_optimizer(student.policy, config.optimizer)
        pauses = list(one_update(student, before.policy, adam, student.task.draw(0, 2, config.seed), config))
        weights = {name: weight.clone() for name, weight in student.policy.weights().items()}
    with grpo.train(config) as run:
        measured = {row["name"]: row["value"] for row in run.select("SELECT name, value FROM metrics WHERE step = 0")}
        recorded = [done for group in run.groups(0) for done in group["completions"]]
        [folder] = (run.path / "checkpoints").iterdir()
    ours = [done for group in pauses[-1].groups for done in group.completions]
    assert [done["text"] for done in recorded] == [done.text for done in ours]
    assert [done["reward"] for done in recorded] == [done.reward for done in ours]
    for pause in pauses:
        for name, value in pause.measured.items():
            assert measured[name] == pytest.approx(value, abs=1e-6), name
    [file] = folder.rglob("model.safetensors")
    for name, weight in load_file(file).items():
        assert torch.equal(weight, weights[name]), name


def test_each_phase_adds_and_none_runs_ahead() -> None:
    found = [paused_update({"phase": str(place)}) for place in range(len(PHASES))]
    assert [one["phase"] for one in found] == list(PHASES)
    assert all(row["reward"] is None for row in found[0]["completions"])
    assert {row["reward"] for row in found[1]["completions"]} == {0.0, 1.0}
    assert all(row["advantage"] is None for row in found[1]["completions"])
    rewards = torch.tensor([row["reward"] for row in found[2]["completions"]])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert [row["advantage"] for row in found[2]["completions"]] == pytest.approx(expected.tolist(), abs=1e-5)
    # At ratio 1 the push on a token is A / |o| / G: weights of a mean over tokens, then over completions.
    for row in found[3]["completions"]:
        assert row["push"] == pytest.approx([row["advantage"] / len(row["tokens"]) / 8] * len(row["tokens"]), abs=1e-6)
    assert found[3]["measured"]["loss"] == pytest.approx(0, abs=1e-6)
    after = found[4]["after"]
    rose = [
        sum(now) - sum(row["logprobs"]) for row, now in zip(found[4]["completions"], after["logprobs"], strict=True)
    ]
    worked = [row["text"].startswith("(") for row in found[4]["completions"]]
    assert all(change > 0 for change, has in zip(rose, worked, strict=True) if has)
    assert settings({}).loss.beta == 0.04
    with pytest.raises(GrpoError, match="phase"):
        paused_update({"phase": "5"})


def test_an_own_answer_is_scored_as_in_training() -> None:
    found = scored_group({"gold": "14", "group": "14\nI think 20.\n#### 12", "own": r"so \boxed{14}"})
    assert [row["form"] for row in found["rows"]] == ["bare", "last number", "hashes", "box"]
    assert [row["reward"] for row in found["rows"]] == [1, 0, 0, 1]
    assert [row["own"] for row in found["rows"]] == [False, False, False, True]
    # Two of four: mean 1/2, sample deviation √(1/3).
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert [row["advantage"] for row in found["rows"]] == pytest.approx([expected, -expected, -expected, expected])
    words = scored_group({"gold": "Paris", "group": "It is Paris.\nThe answer is Paris."})
    assert [row["reward"] for row in words["rows"]][1] == 1


@pytest.mark.parametrize(
    "query",
    [{"gold": ""}, {"gold": r"\frac{\pi}{2}"}, {"group": "\n".join("x" * 20)}, {"group": " \n "}, {"group": "x" * 500}],
)
def test_groups_that_cannot_be_scored_here_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(GrpoError, match=r"^(gold|group): "):
        scored_group(query)


def test_what_can_be_checked_pays_the_right_answer_alone() -> None:
    for row in verifiable({}):
        assert [answer["reward"] for answer in row["answers"]] == [1.0, 0.0], row["kind"]


def test_markers_are_counted() -> None:
    found = aha({"marker": "("})
    first, last = found["counted"][0], found["counted"][-1]
    assert first["step"] == 0
    assert first["count"] == round(first["share"] * first["answers"])
    assert last["share"] > 0.9 > first["share"]
    with_and_without = first["right_with"] * first["count"] + first["right_without"] * (
        first["answers"] - first["count"]
    )
    assert with_and_without / first["answers"] == pytest.approx(first["right"])
    assert set(found["reflection"].values()) == {0}, "a model of digits has no words to take a thought back with"
    assert not any(character.isalpha() for character in found["alphabet"])
    assert aha({"marker": ";"})["counted"][0]["count"] < first["answers"]
    with pytest.raises(GrpoError, match="marker"):
        aha({"marker": ""})


def test_a_judge_without_noise_is_right_and_without_differences_is_noise() -> None:
    assert judged({"noise": "0"})["agreement"] == pytest.approx(1)
    assert judged({"noise": "0"})["wrong_sign"] == 0
    level = judged({"spread": "0", "noise": "0.01"})
    # n sample-normalised values have a mean square of (n − 1) / n, however small the noise was.
    assert level["advantage_std"] == pytest.approx(math.sqrt(7 / 8), abs=0.02)
    assert judged({"spread": "0", "noise": "0"})["zero_signal_groups"] == 1


def test_learning_without_being_shown() -> None:
    found = scratch({"logp": "-3", "g": "8"})
    assert found["signal"] == pytest.approx(1 - 0.999**8 - 0.001**8)
    assert found["groups_until_signal"] == pytest.approx(1 / found["signal"])
    assert scratch({"logp": "0"})["groups_until_signal"] is None


def test_likelihood_is_not_correctness() -> None:
    found = gap({"prompt": "29+60+75="})
    assert [row["logprob"] for row in found["rows"]] == sorted((row["logprob"] for row in found["rows"]), reverse=True)
    for row in found["rows"][:3]:  # what the model says of itself is what it does
        spread = math.sqrt(math.exp(row["logprob"]) / found["samples"])
        assert row["share"] == pytest.approx(math.exp(row["logprob"]), abs=5 * spread)
    styles = found["right_by_style"]
    assert styles["worked"] > 0.9 > 0.3 > styles["direct"]
    measured = stages({})["fine_tuned"]
    assert measured["greedy_accuracy"] < measured["accuracy"]


def test_cards_are_computed() -> None:
    found = cards({})
    work = Work(prompts=16, group_size=8, prompt_tokens=256, new_tokens=1024)
    shape = typical_shape("7B")
    kept, extra = (
        memory_of(shape, work, Needs(reference=True, critic=critic), PRECISIONS["bfloat16"], on_gpu=True).peak
        for critic in (False, True)
    )
    assert found["memory_saved"] == pytest.approx(1 - kept / extra)
    assert 0.2 < found["memory_saved"] < 0.5


@pytest.mark.parametrize("key", sorted(ANSWERS))
def test_every_answer_has_a_default(key: str) -> None:
    assert ANSWERS[key]({})
