"""The clinic: runs with one wrong setting each, and runs with the advised remedies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo.errors import GrpoError
from grpo.lab.chapters.query import Query
from grpo.lab.trials.recorded import recorded_arms

METRICS = ["reward_mean", "entropy", "kl", "length_mean", "zero_signal_groups", "truncated"]


@dataclass(frozen=True)
class Patient:
    """A faulty run and its remedies: the first arm of the trial has the fault, the others are remedies."""

    trial: str
    symptom: str
    cause: str
    kinds: tuple[str, ...]
    """Findings that name the cause; empty if the record cannot show it."""
    lesson: str


PATIENTS: tuple[Patient, ...] = (
    Patient(
        "patient-1",
        "The reward falls to 0 within a few steps and stays there.",
        "lr",
        ("reward_fall", "kl"),
        "The usual advice is a lower learning rate or a larger group. Only the lower learning rate fixes it.",
    ),
    Patient(
        "patient-2",
        "The reward rises a little in the first steps and then stays flat.",
        "beta",
        ("reward_flat",),
        "The KL penalty outweighs the reward. A ten times higher learning rate looks like a remedy but breaks the run; "
        "a weaker penalty lets it learn.",
    ),
    Patient(
        "patient-3",
        "All answers to a prompt are the same, right or wrong.",
        "temperature",
        ("entropy_collapse", "no_signal"),
        "At this low temperature all answers of a group agree: soon no group has signal, and learning stops, ten times "
        "as far from the reference. The advised entropy bonus also leaves every group without signal. At "
        "temperature 1 a quarter of the groups have signal to the end.",
    ),
    Patient(
        "patient-4",
        "The reward is high and still rises, but the answers are poor.",
        "reward",
        (),
        "Every number looks good, because held-out problems are scored by the same reward. Only a "
        "separate measurement shows the fault, here the share of exactly right answers. A stronger KL penalty slows "
        "it down; a corrected reward fixes it.",
    ),
    Patient(
        "patient-5",
        "Nothing changes: the reward stays at 0.",
        "hard",
        ("all_wrong",),
        "No answer is ever right, so all advantages are 0.",
    ),
    Patient(
        "patient-6",
        "Answers stop in the middle.",
        "short",
        ("truncated",),
        "The limit is shorter than an answer with working, so answers are truncated.",
    ),
)
CAUSES = {
    "lr": "learning rate far too high",
    "beta": "KL penalty far too strong",
    "temperature": "sampling temperature too low",
    "reward": "the reward rewards the wrong thing",
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
            {"label": "with a corrected reward", "settings": {"task": "gameable:mended"}},
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
            {"label": "with at most 8 tokens", "settings": {"max_new_tokens": 8}},
            {"label": "with at most 32 tokens", "settings": {}},
        ],
    },
}
for _trial in TRIALS.values():
    _trial |= {"seeds": 2, "steps": 60, "metrics": _trial.get("metrics", METRICS)}


def clinic(query: Query) -> list[dict[str, Any]]:
    """The faulty runs with their symptoms, and all possible causes."""
    return [{"trial": each.trial, "symptom": each.symptom, "causes": CAUSES} for each in PATIENTS]


def diagnosis(query: Query) -> dict[str, Any]:
    """The wrong setting of a run, the findings of `record.diagnosis`, and the result of each remedy."""
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
