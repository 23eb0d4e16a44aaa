"""Each alarm rises on the fault it is for, leads to its evidence, and is silent elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import make_run

from grpo.lab.alarms import alarms
from grpo.lab.catalogue import RECORDINGS
from grpo.store import Run

STEPS = 30


def ramp(first: float, last: float) -> Any:
    return lambda step: first + (last - first) * step / (STEPS - 1)


def parts(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"format": 1.0, "correct": float((step + group + sample) % 2)}


def all_wrong(step: int, group: int, sample: int) -> dict[str, float | None]:
    return {"correct": 0.0}


PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "Gradients that were not finite": ("groups", {"metrics": lambda s: {"skipped_updates": float(s == 17)}}),
    "Reward rose while held-out accuracy fell": (
        "completions",
        {"metrics": lambda s: {"reward_mean": ramp(0.3, 0.9)(s)}, "evals": ((0, 0.5), (15, 0.6), (30, 0.3))},
    ),
    "Everyone earns format": ("groups", {"rewards": parts}),
    "Wrong answers that are all the same": ("groups", {"rewards": all_wrong, "texts": lambda *place: "0"}),
    "Completions grew without reward": ("completions", {"metrics": lambda s: {"length_mean": ramp(10, 80)(s)}}),
    "Completions shrank without reward": ("completions", {"metrics": lambda s: {"length_mean": ramp(80, 10)(s)}}),
    "Many completions are cut off": ("completions", {"metrics": lambda s: {"truncated": ramp(0.0, 0.6)(s)}}),
    "Entropy has fallen to the floor": ("tokens", {"metrics": lambda s: {"entropy": max(0.001, ramp(1.0, -1.0)(s))}}),
    "The policy is far from its reference": ("tokens", {"metrics": lambda s: {"kl": ramp(0.0, 1.5)(s)}}),
    "Ratios far from 1": ("tokens", {"metrics": lambda s: {"ratio_max": 30.0 if s % 5 == 0 else 1.1}}),
    "Sampler and trainer disagree": ("tokens", {"metrics": lambda s: {"sampler_gap": 0.2}}),
    "Hardly a group has anything to teach": ("signal", {"metrics": lambda s: {"zero_signal_groups": 0.98}}),
}


@pytest.mark.parametrize("title", PLANTED)
def test_a_planted_fault_raises_its_alarm_and_no_other(title: str, tmp_path: Path) -> None:
    view, fault = PLANTED[title]
    make_run(tmp_path, "planted", steps=STEPS, **fault)
    with Run.open(tmp_path, "planted", readonly=True) as run:
        [alarm] = alarms(run)
    assert (alarm["title"], alarm["view"]) == (title, view)


def test_the_step_named_is_the_step_of_the_fault(tmp_path: Path) -> None:
    make_run(tmp_path, "planted", metrics=lambda step: {"skipped_updates": float(step == 17)})
    with Run.open(tmp_path, "planted", readonly=True) as run:
        assert alarms(run)[0]["query"] == {"step": 17}


def test_a_sound_run_raises_none(tmp_path: Path) -> None:
    make_run(tmp_path, "sound")
    make_run(tmp_path, "short", steps=5, metrics=lambda step: {"kl": 9.0})
    for name in ("sound", "short"):
        with Run.open(tmp_path, name, readonly=True) as run:
            assert alarms(run) == []


def test_the_recording_raises_none() -> None:
    """It ends certain, with one text per group and hardly any signal left: solved, and no trouble."""
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        assert alarms(run) == []
