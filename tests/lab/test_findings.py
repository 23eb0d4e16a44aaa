"""A planted fault is in the findings view once, and leads to its evidence; a sound run is left in peace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.lab.catalogue import RECORDINGS
from grpo.lab.findings import evidence, findings
from grpo.record.diagnosis import KINDS, Finding
from grpo.record.store import Run
from helpers.records import make_run, make_sft_run, reward_of

STEPS = 30


def ramp(first: float, last: float) -> Any:
    return lambda step: first + (last - first) * step / (STEPS - 1)


def mostly_wrong(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"correct": 0.0} if group == 2 else reward_of(step, group, sample)


def easy_format(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"format": 0.2, "correct": 0.8 * ((step + group + sample) % 2)}


FALLEN = ((0, 0.5), (15, 0.6), (30, 0.3))
"""Evaluations: after how many steps, and the accuracy."""
PLANTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "truncated": ("completions", {"filters": "cut"}, {"metrics": lambda s: {"truncated": ramp(0.0, 0.6)(s)}}),
    "all_wrong": ("groups", {"step": 29, "group": 3}, {"rewards": lambda *place: {"correct": 0.0}}),
    "no_signal": ("signal", {}, {"metrics": lambda s: {"zero_signal_groups": 0.98}}),
    "entropy_collapse": (
        "tokens",
        {"lens": "entropy", "step": 29},
        {"metrics": lambda s: {"entropy": 1.0 if s < 10 else 0.001}},
    ),
    "length_growth": ("completions", {}, {"metrics": lambda s: {"length_mean": ramp(10, 80)(s)}}),
    "kl": ("tokens", {"lens": "kl", "step": 29}, {"metrics": lambda s: {"kl": ramp(0.0, 1.5)(s)}}),
    "clipped": ("tokens", {"lens": "clip", "step": 29}, {"metrics": lambda s: {"clip_low": 0.15, "clip_high": 0.1}}),
    "ratios": (
        "tokens",
        {"lens": "ratio", "step": 24},
        {"metrics": lambda s: {"ratio_max": 30.0 + (s == 24) if s % 4 == 0 else 1.1}},
    ),
    "sampler_gap": ("tokens", {"lens": "gap", "step": 29}, {"metrics": lambda s: {"sampler_gap": 0.2}}),
    "trained_observations": (
        "tokens",
        {"lens": "gap", "step": 0},
        {"metrics": lambda s: {"sampler_gap": 0.0 if s else 0.3, "observation_tokens": 12.0}},
    ),
    "duplicates": (
        "groups",
        {"step": 29, "group": 2},
        {"rewards": mostly_wrong, "texts": lambda step, group, sample: "0" if group == 2 else f"{group} {sample}"},
    ),
    "saturated_part": ("groups", {"step": 29}, {"rewards": easy_format}),
    "reward_hacking": (
        "completions",
        {"filters": "right"},
        {"metrics": lambda s: {"reward_mean": ramp(0.3, 0.9)(s)}, "evals": FALLEN},
    ),
    "overfitting": (
        "difficulty",
        {},
        {"metrics": lambda s: dict.fromkeys(("reward_mean", "accuracy"), ramp(0.3, 0.9)(s)), "evals": FALLEN},
    ),
    "reward_fall": ("groups", {"step": 29}, {"metrics": lambda s: {"reward_mean": 0.6 if s < 15 else 0.1}}),
    "spike": ("groups", {"step": 26}, {"metrics": lambda s: {"grad_norm": 40.0 if s == 26 else 1.0}}),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_leads_to_its_evidence_and_no_other_is_found(kind: str, tmp_path: Path) -> None:
    view, query, fault = PLANTED[kind]
    make_run(tmp_path, "planted", steps=STEPS, **fault)
    with Run.open(tmp_path, "planted", readonly=True) as run:
        found = findings(run)
    [finding] = found["now"]
    assert (finding["kind"], finding["view"], finding["query"]) == (kind, view, query)
    assert found["noted"] == []


def test_every_kind_has_a_place() -> None:
    for kind in KINDS:
        assert evidence(Finding(kind, 5, 1.0, "", "", 5))["view"] in (
            "completions",
            "tokens",
            "signal",
            "difficulty",
            "groups",
            "time",
        )


def test_what_the_run_noted_is_there_once(tmp_path: Path) -> None:
    make_run(tmp_path, "planted", metrics=lambda step: {"kl": 1.5})
    with Run.open(tmp_path, "planted") as run:
        [standing] = findings(run)["now"]
        run.add_finding("nonfinite", "step 17: a gradient was not finite", 17)
        run.add_finding(standing["kind"], standing["text"], standing["step"])
        run.add_finding("changed", "lr was 1, is 2")
        found = findings(run)
    assert [finding["kind"] for finding in found["now"]] == ["kl"]
    assert [(row["kind"], row["view"], row["query"]) for row in found["noted"]] == [
        ("nonfinite", "groups", {"step": 17}),
        ("changed", None, {}),
    ]


def test_a_sound_run_raises_none(tmp_path: Path) -> None:
    make_run(tmp_path, "sound")
    make_run(tmp_path, "short", steps=5, metrics=lambda step: {"kl": 0.9})
    make_sft_run(tmp_path, "tuned")
    for name in ("sound", "short", "tuned"):
        with Run.open(tmp_path, name, readonly=True) as run:
            assert findings(run) == {"now": [], "noted": []}


def test_the_recording_raises_none() -> None:
    """It ends certain, with one text per group and hardly any signal left: solved, and no trouble."""
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        assert findings(run) == {"now": [], "noted": []}
