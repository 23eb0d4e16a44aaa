"""Planted faults are found, with the number that was planted; a healthy run is left in peace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.terminal.report import result
from grpo.config import Config, Evaluation, System
from grpo.record.diagnosis import KINDS, Record, diagnose, news
from grpo.record.store import Run

DOCS = Path(__file__).parents[2] / "docs"
HEALTHY = json.loads(Path(__file__).with_name("healthy_tiny.json").read_text())
"""Metrics and evaluations of `grpo train` with seed 1, as recorded."""


def steps(count: int, **metrics: Any) -> list[dict[str, Any]]:
    """Rows of a run in which nothing is wrong, but for the metrics given: a number, or a function of the step."""
    plain = {
        "reward_mean": lambda step: 0.3 + 0.005 * step + 0.02 * (-1) ** step,
        "accuracy": lambda step: min(0.3 + 0.005 * step, 0.8),
        "truncated": 0.0,
        "entropy": 0.5,
        "length_mean": 20.0,
        "kl": 0.01,
        "clip_low": 0.0,
        "clip_high": 0.0,
        "grad_norm": 1.0,
    }
    return [
        {"step": step, **{name: each(step) if callable(each) else each for name, each in (plain | metrics).items()}}
        for step in range(count)
    ]


def groups(rewards: Sequence[Sequence[float]], texts: Sequence[str] = (), **parts: Sequence[float]) -> list[Any]:
    """One group for each row of rewards; texts and parts go round."""
    found = []
    for index, row in enumerate(rewards):
        completions = [
            {
                "reward": reward,
                "correct": None if reward is None else reward >= 1,
                "text": texts[i % len(texts)] if texts else f"answer {i}",
                "parts": {name: values[i % len(values)] for name, values in parts.items()} or {"correct": reward},
            }
            for i, reward in enumerate(row)
        ]
        found.append({"step": 19, "group_index": index, "completions": completions})
    return found


MIXED = [[1.0, 0.0, 0.0, 1.0]] * 6


def kinds(record: Record) -> list[str]:
    return [finding.kind for finding in diagnose(record)]


def test_nothing_is_said_of_a_sound_run() -> None:
    assert diagnose(Record(steps(80), groups=groups(MIXED))) == []
    assert diagnose(Record(steps(9, truncated=1.0), groups=groups([[0.0] * 4] * 4))) == [], "too little to judge"


@pytest.mark.parametrize("length", [10, 20, 40, 80, 120])
def test_the_default_run_is_healthy_at_every_length(length: int) -> None:
    rows = HEALTHY["steps"][:length]
    evals = [row for row in HEALTHY["evals"] if row["step"] <= length]
    assert diagnose(Record(rows, evals, config=HEALTHY["config"])) == []


PLANTED: dict[str, tuple[Record, str, float, tuple[str, ...]]] = {
    "cut": (
        Record(steps(20, truncated=lambda step: 0.1 if step < 10 else 0.4), config={"max_new_tokens": 48}),
        "truncated",
        0.4,
        ("after 20 steps", "40% of the completions", "max_new_tokens (48)"),
    ),
    "out of reach": (
        Record(steps(20), groups=groups([[0.0] * 4] * 3 + [[1.0, 0.0, 0.0, 0.0]])),
        "all_wrong",
        0.75,
        ("75% of the groups have no right answer", "grpo sft"),
    ),
    "solved": (
        Record(steps(20), groups=groups([[1.0] * 4] * 19 + [[1.0, 0.0, 1.0, 1.0]])),
        "all_right",
        0.95,
        ("95% of the groups are all right",),
    ),
    "graded too coarsely": (
        Record(steps(20, zero_signal_groups=0.95)),
        "no_signal",
        0.95,
        ("95% of the groups have equal rewards",),
    ),
    "not scored": (
        Record(steps(20, unscored=0.75, zero_signal_groups=1.0), groups=groups([[None] * 4] * 4)),
        "no_signal",
        0.75,
        ("75% of the completions have no reward", "returned None"),
    ),
    "no exploration left": (
        Record(steps(30, entropy=lambda step: 0.5 if step < 15 else 0.01)),
        "entropy_collapse",
        0.01,
        ("from 0.5 to 0.01 nats", "--loss.entropy"),
    ),
    "shorter for nothing": (
        Record(steps(30, length_mean=lambda step: 20.0 if step < 15 else 8.0, reward_mean=0.3)),
        "length_collapse",
        8.0,
        ("from 20.0 to 8.0 tokens",),
    ),
    "longer for nothing": (
        Record(steps(30, length_mean=lambda step: 20.0 if step < 15 else 44.0, reward_mean=0.3)),
        "length_growth",
        44.0,
        ("from 20.0 to 44.0 tokens", "dr_grpo"),
    ),
    "far from the reference": (Record(steps(20, kl=2.5)), "kl", 2.5, ("2.5 nats per token", "--loss.beta")),
    "clipped": (
        Record(steps(20, clip_low=0.1, clip_high=0.15)),
        "clipped",
        0.25,
        ("25% of the tokens are clipped", "--optimizer.epochs"),
    ),
    "far from the old policy": (
        Record(steps(20, ratio_max=lambda step: 12.0 + step if step in (11, 14, 18) else 2.0)),
        "ratios",
        30.0,
        ("in 3 of the last 10 steps", "up to 30 times"),
    ),
    "two models": (
        Record(steps(20, sampler_gap=0.2)),
        "sampler_gap",
        0.2,
        ("disagree by 0.2 nats per token", "--loss.correction token"),
    ),
    "the same again": (
        Record(steps(20), groups=groups([[0.0] * 8] + [[1.0, 0.0] * 4] * 2, texts=["It is 7.", "it is 7"] * 4)),
        "duplicates",
        1 / 8,
        ("only 12% differ", "temperature"),
    ),
    "format is easy": (
        Record(steps(20), groups=groups([[1.0, 0.2, 0.2, 1.0]] * 4, format=[0.2], correct=[0.8, 0.0])),
        "saturated_part",
        1.0,
        ("part format is 0.2 for 100%", "--loss.weights"),
    ),
    "no progress": (
        Record(steps(60, reward_mean=lambda step: 0.3 + 0.05 * (-1) ** step)),
        "reward_flat",
        0.3,
        ("0.300 then and 0.300 now", "raise lr"),
    ),
    "collapse": (
        Record(steps(60, reward_mean=lambda step: 0.6 if step < 40 else 0.2)),
        "reward_fall",
        0.2,
        ("the reward is 0.20 and was 0.60 after 10 steps", "lower lr"),
    ),
    "spike": (
        Record(steps(40, grad_norm=lambda step: 30.0 if step == 34 else 1.5)),
        "spike",
        20.0,
        ("after 35 steps", "jumped to 30, usually 1.5"),
    ),
    "hacking": (
        Record(
            steps(60),
            [
                {"step": 0, "accuracy": 0.30, "low": 0.26, "high": 0.34},
                {"step": 20, "accuracy": 0.60, "low": 0.56, "high": 0.64},
                {"step": 60, "accuracy": 0.40, "low": 0.36, "high": 0.44},
            ],
        ),
        "reward_hacking",
        0.40,
        # Steps 15 to 25: 0.3 + 0.005 · 20 − 0.02/11 = 0.398; steps 50 to 59: 0.3 + 0.005 · 54.5 = 0.5725.
        ("from 60% (after 20 steps) to 40%", "rose from 0.40 to 0.57", "--best"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_number(name: str) -> None:
    record, kind, value, fragments = PLANTED[name]
    found = {finding.kind: finding for finding in diagnose(record)}
    assert kind in found
    assert found[kind].value == pytest.approx(value)
    for fragment in fragments:
        assert fragment in found[kind].text
    allowed = {"out of reach": {"all_wrong"}, "the same again": {"duplicates"}}
    extra = set(found) - {kind} - allowed.get(name, set())
    assert not extra, "one fault, one finding"


def test_what_excuses() -> None:
    calm = {"entropy": lambda step: 0.5 if step < 15 else 0.01}
    assert kinds(Record(steps(30, accuracy=0.95, **calm))) == [], "solved: nothing to explore"
    short = {"length_mean": lambda step: 20.0 if step < 15 else 8.0}
    assert kinds(Record(steps(30, **short))) == [], "shorter and better"
    clipped = {"clip_high": 0.4}
    assert kinds(Record(steps(20, **clipped), config={"loss": {"ratio": "sequence"}})) == [], "GSPO clips more"
    assert kinds(Record(steps(20), groups=groups(MIXED, correct=[1.0, 0.0], format=[0.0, 1.0]))) == []
    corrected = {"loss": {"correction": "token"}}
    assert kinds(Record(steps(20, sampler_gap=0.2), config=corrected)) == [], "weighed in"
    assert kinds(Record(steps(20, zero_signal_groups=0.95, accuracy=0.95))) == [], "solved: nothing to learn"
    assert kinds(Record(steps(20, ratio_max=lambda step: 50.0 if step > 17 else 2.0))) == [], "two odd steps"
    evals = [
        {"step": 0, "accuracy": 0.5, "low": 0.4, "high": 0.6},
        {"step": 60, "accuracy": 0.45, "low": 0.35, "high": 0.55},
    ]
    assert kinds(Record(steps(60), evals)) == [], "within luck"
    lucky = Record(steps(60, reward_mean=lambda step: 0.01 if step == 20 else 0.0))
    assert "reward_fall" not in kinds(lucky), "one right answer, and then none again"


def test_partial_rewards_teach_though_nothing_is_right() -> None:
    assert kinds(Record(steps(20), groups=groups([[0.5, 0.2, 0.0, 0.1]] * 4))) == []
    assert kinds(Record(steps(20), groups=groups([[0.5] * 4] * 4))) == ["all_wrong"]


def test_told_again_only_when_it_has_changed() -> None:
    record, *_ = PLANTED["cut"]
    [finding] = diagnose(record)
    assert finding.is_news_after(None)
    assert not finding.is_news_after(replace(finding, value=0.3))
    assert finding.is_news_after(replace(finding, value=0.25))


# Real runs


def settings(folder: Path, **changes: Any) -> Config:
    base = Config(
        model="nano",
        run="job",
        steps=10,
        prompts_per_step=4,
        group_size=4,
        max_new_tokens=32,
        checkpoint_every=5,
        evaluation=Evaluation(every=0, problems=50, probes=0),
        system=System(runs=str(folder), device="cpu", threads=1),
    )
    return replace(base, **changes)


def told(run: Run) -> list[tuple[str, int]]:
    return [(row["kind"], row["step"]) for row in run.findings() if row["kind"] in KINDS]


def test_a_resumed_run_does_not_repeat_its_findings(tmp_path: Path) -> None:
    """Five tokens are too few to finish: found after ten steps, and no news ten steps later."""
    with grpo.train(settings(tmp_path, max_new_tokens=5)) as run:
        assert ("truncated", 9) in told(run)
        first = told(run)
        share = sum(value for _, value in run.series("truncated")) / 10
        [finding] = [finding for finding in diagnose(run) if finding.kind == "truncated"]
        assert finding.value == pytest.approx(share)
        assert news(run, 9) == [], "asked again of the same step"
        assert any("cut at max_new_tokens (5)" in line for line in result(run, 100))
        assert run.summary()["findings"] == run.findings()
    with grpo.train(settings(tmp_path, max_new_tokens=5, steps=20, resume=True)) as run:
        assert [each for each in told(run) if each[0] == "truncated"] == [("truncated", 9)]
        assert told(run)[: len(first)] == first


def test_a_ruinous_learning_rate_is_noticed(tmp_path: Path) -> None:
    with grpo.train(settings(tmp_path, steps=30, lr=0.03)) as run:
        assert {kind for kind, _ in told(run)} & {"reward_fall", "kl", "spike", "all_wrong", "truncated"}
        rewards = [value for _, value in run.series("reward_mean")]
        assert sum(rewards[-5:]) < sum(rewards[:5])


def test_a_healthy_run_is_left_in_peace(tmp_path: Path) -> None:
    with grpo.train(settings(tmp_path, steps=30, lr=3e-4, prompts_per_step=16, group_size=8)) as run:
        assert told(run) == []


def test_every_finding_is_documented() -> None:
    page = (DOCS / "diagnosis.md").read_text()
    documented = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    assert documented == list(KINDS)
    assert {finding.kind for record, *_ in PLANTED.values() for finding in diagnose(record)} == set(KINDS)
