"""Runs with something wrong with them, for the reader to find out what; and what is said to help, tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.chapters.query import Query
from grpo.lab.trials.recorded import recorded_arms

METRICS = ["reward_mean", "entropy", "kl", "length_mean", "zero_signal_groups", "truncated"]


@dataclass(frozen=True)
class Patient:
    """The first arm is the sick one; the others are remedies."""

    trial: str
    symptom: str
    cause: str
    kinds: tuple[str, ...]
    """Findings, any of which names it; none: the record cannot show it."""
    lesson: str


PATIENTS: tuple[Patient, ...] = (
    Patient(
        "patient-1",
        "The reward jumps to nothing within a few steps and never comes back.",
        "lr",
        ("reward_fall", "kl"),
        "One advises a lower learning rate or a larger group. The lower rate mends it; four times the answers do not.",
    ),
    Patient(
        "patient-2",
        "The reward rises a little in the first steps, and then stays where it is.",
        "beta",
        ("reward_flat",),
        "The pull back to the reference outweighs the reward. Ten times the learning rate, which looks like a remedy, "
        "breaks it; a weaker pull lets it learn.",
    ),
    Patient(
        "patient-3",
        "All answers to a prompt look the same, right or wrong.",
        "temperature",
        ("entropy_collapse", "no_signal"),
        "Sampled this coldly, siblings agree: soon no group has anything to compare, and learning stops where it is, "
        "ten times as far from the reference. The advised entropy bonus leaves every group without signal too; a "
        "temperature of 1 keeps a quarter of them teaching to the end.",
    ),
    Patient(
        "patient-4",
        "The reward is high and still rises. Somebody who reads the answers is not happy.",
        "reward",
        (),
        "No finding: held-out problems are paid by the same reward, so every number that is paid looks well. Only what "
        "is not paid for shows it, here the share of truly right answers. A stronger pull to the reference slows it "
        "down; a reward that means what it says ends it.",
    ),
    Patient(
        "patient-5",
        "Nothing happens at all. The gradient's norm is 0.",
        "hard",
        ("all_wrong",),
        "No answer is ever right, so no answer is better than its siblings.",
    ),
    Patient(
        "patient-6",
        "Answers stop in the middle.",
        "short",
        ("truncated",),
        "The limit is shorter than an answer; the end is never reached, and working it out does not fit.",
    ),
)
CAUSES = {
    "lr": "learning rate far too high",
    "beta": "KL penalty far too strong",
    "temperature": "sampling too cold",
    "reward": "the reward pays for the wrong thing",
    "hard": "problems too hard",
    "short": "length limit too short",
}
TRIALS: dict[str, dict[str, Any]] = {
    "patient-1": {
        "arms": [
            {"label": "patient 1", "settings": {"lr": 0.01}},
            {"label": "with a group of 32", "settings": {"lr": 0.01, "group_size": 32}},
            {"label": "with a thirtieth of the learning rate", "settings": {}},
        ],
    },
    "patient-2": {
        "arms": [
            {"label": "patient 2", "settings": {"loss.beta": 2.0}},
            {"label": "with ten times the learning rate", "settings": {"loss.beta": 2.0, "lr": 0.003}},
            {"label": "with β = 0.04", "settings": {}},
        ],
    },
    "patient-3": {
        "arms": [
            {"label": "patient 3", "settings": {"temperature": 0.1}},
            {"label": "with an entropy bonus", "settings": {"temperature": 0.1, "loss.entropy": 0.01}},
            {"label": "at temperature 1", "settings": {}},
        ],
    },
    "patient-4": {
        "arms": [
            {"label": "patient 4", "settings": {"task": "gameable"}},
            {"label": "with β = 0.5", "settings": {"task": "gameable", "loss.beta": 0.5}},
            {"label": "with a reward that means it", "settings": {"task": "gameable:mended"}},
        ],
        "metrics": ["reward_mean", "right_share", "worked_share", "length_mean"],
    },
    "patient-5": {
        "arms": [
            {"label": "patient 5", "settings": {"task": "arithmetic"}},
            {"label": "with a group of 32", "settings": {"task": "arithmetic", "group_size": 32}},
            {"label": "with easier problems", "settings": {}},
        ],
    },
    "patient-6": {
        "arms": [
            {"label": "patient 6", "settings": {"max_new_tokens": 3}},
            {"label": "with room for 8 tokens", "settings": {"max_new_tokens": 8}},
            {"label": "with room for 32", "settings": {}},
        ],
    },
}
for _trial in TRIALS.values():
    _trial |= {"seeds": 2, "steps": 60, "metrics": _trial.get("metrics", METRICS)}


def clinic(query: Query) -> list[dict[str, Any]]:
    """Who is waiting, and what ails them all may have."""
    return [{"trial": each.trial, "symptom": each.symptom, "causes": CAUSES} for each in PATIENTS]


def diagnosis(query: Query) -> dict[str, Any]:
    """What was planted in a patient, what `record.diagnosis` found in the recorded runs, and what each remedy did."""
    asked = query.get("patient", "")
    patient = next((each for each in PATIENTS if each.trial == asked), None)
    if patient is None:
        raise GrpoError(f"patient: expected one of {', '.join(each.trial for each in PATIENTS)}; got {asked[:40]!r}")
    arms = recorded_arms(patient.trial)
    return {
        "cause": patient.cause,
        "words": CAUSES[patient.cause],
        "lesson": patient.lesson,
        "settings": arms[0]["settings"],
        "findings": found_in(arms[0]),
        "named": any(each["kind"] in patient.kinds for each in found_in(arms[0])),
        "remedies": [
            {
                "label": arm["label"],
                "findings": [each["kind"] for each in found_in(arm)],
                "before": arm["accuracy"]["before"]["mean"],
                "after": arm["accuracy"]["after"]["mean"],
                **{name: points[-1]["mean"] for name, points in arm["bands"].items() if points},
            }
            for arm in arms
        ],
    }


def found_in(arm: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of all seeds, each kind once."""
    kinds: dict[str, dict[str, Any]] = {}
    for findings in arm["findings"].values():
        for finding in findings:
            kinds.setdefault(finding["kind"], finding)
    return list(kinds.values())
