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
from grpo.record.diagnosis import KINDS, Finding, History, diagnose
from grpo.record.diagnosis.causes import EXPLAINS, ranked
from grpo.record.diagnosis.history import CAUSES
from grpo.record.diagnosis.monitor import Monitor
from grpo.record.ranks import Ranks
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


def kinds(record: History) -> list[str]:
    return [finding.kind for finding in diagnose(record)]


def test_nothing_is_said_of_a_sound_run() -> None:
    assert diagnose(History(steps(80), groups=groups(MIXED))) == []
    assert diagnose(History(steps(9, truncated=1.0), groups=groups([[0.0] * 4] * 4))) == [], "too little to judge"


@pytest.mark.parametrize("length", [2, 5, 9, 10, 20, 40, 80, 120])
def test_the_default_run_is_healthy_at_every_length(length: int) -> None:
    rows = HEALTHY["steps"][:length]
    evals = [row for row in HEALTHY["evals"] if row["step"] <= length]
    assert diagnose(History(rows, evals, config=HEALTHY["config"])) == []


def with_ranks(*idle: float, seconds: float = 4.0) -> History:
    """A run on two hosts, in every step of which ranks are idle for these shares of its seconds."""
    rows = steps(20, seconds=seconds, **{f"idle/{rank}": share for rank, share in enumerate(idle)})
    history = History(rows)
    history.ranks = Ranks(len(idle), ["gpu-1", "gpu-2"] * (len(idle) // 2), "none")
    return history


FALLEN = [
    {"step": 0, "accuracy": 0.30, "low": 0.26, "high": 0.34},
    {"step": 20, "accuracy": 0.60, "low": 0.56, "high": 0.64},
    {"step": 60, "accuracy": 0.40, "low": 0.36, "high": 0.44},
]
"""Evaluations: the last is far below the best."""

PLANTED: dict[str, tuple[History, str, float, tuple[str, ...]]] = {
    "a slow rank": (
        with_ranks(0.05, 0.6, 0.55, 0.75),
        "idle_rank",
        0.75,
        ("rank 3 on gpu-2 is idle for 75% of a step (3.0 s)", "waiting for rank 0 on gpu-1, which is idle for 5%"),
    ),
    "a slow network": (
        with_ranks(0.6, 0.8),
        "idle_rank",
        0.8,
        ("rank 1 on gpu-2 is idle for 80% of a step (3.2 s), and every rank for 60% or more", "link"),
    ),
    "cut": (
        History(steps(20, truncated=lambda step: 0.1 if step < 10 else 0.4), config={"max_new_tokens": 48}),
        "truncated",
        0.4,
        ("after 20 steps", "40% of the completions", "max_new_tokens (48)"),
    ),
    "out of reach": (
        History(steps(20), groups=groups([[0.0] * 4] * 3 + [[1.0, 0.0, 0.0, 0.0]])),
        "all_wrong",
        0.75,
        ("75% of the groups have no right answer", "grpo sft"),
    ),
    "solved": (
        History(steps(20), groups=groups([[1.0] * 4] * 19 + [[1.0, 0.0, 1.0, 1.0]])),
        "all_right",
        0.95,
        ("95% of the groups are all right",),
    ),
    "graded too coarsely": (
        History(steps(20, zero_signal_groups=0.95)),
        "no_signal",
        0.95,
        ("95% of the groups have equal rewards",),
    ),
    "not scored": (
        History(steps(20, unscored=0.75, zero_signal_groups=1.0), groups=groups([[None] * 4] * 4)),
        "unscored",
        0.75,
        ("75% of the completions have no reward", "returned None"),
    ),
    "destroyed at once": (
        History(steps(3, kl=lambda step: 11.0 * (step > 0))),
        "diverged",
        11.0,
        ("after 3 steps", "11 nats per token", "lr is too high", "lower lr"),
    ),
    "no exploration left": (
        History(steps(30, entropy=lambda step: 0.5 if step < 15 else 0.01)),
        "entropy_collapse",
        0.01,
        ("from 0.5 to 0.01 nats", "--loss.entropy"),
    ),
    "shorter for nothing": (
        History(steps(30, length_mean=lambda step: 20.0 if step < 15 else 8.0, reward_mean=0.3)),
        "length_collapse",
        8.0,
        ("from 20.0 to 8.0 tokens",),
    ),
    "longer for nothing": (
        History(steps(30, length_mean=lambda step: 20.0 if step < 15 else 44.0, reward_mean=0.3)),
        "length_growth",
        44.0,
        ("from 20.0 to 44.0 tokens", "dr_grpo"),
    ),
    "far from the reference": (History(steps(20, kl=2.5)), "kl", 2.5, ("2.5 nats per token", "--loss.beta")),
    "clipped": (
        History(steps(20, clip_low=0.1, clip_high=0.15)),
        "clipped",
        0.25,
        ("25% of the tokens are clipped", "--optimizer.epochs"),
    ),
    "far from the old policy": (
        History(steps(20, ratio_max=lambda step: 12.0 + step if step in (11, 14, 18) else 2.0)),
        "ratios",
        30.0,
        ("in 3 of the last 10 steps", "up to 30 times"),
    ),
    "two models": (
        History(steps(20, sampler_gap=0.2)),
        "sampler_gap",
        0.2,
        ("differ by 0.2 nats per token", "--loss.correction token"),
    ),
    "trained on what it read": (
        History(steps(3, observation_tokens=12.5, sampler_gap=lambda step: 0.3 if step == 0 else 0.0)),
        "trained_observations",
        0.3,
        ("after 1 step, ", "differ by 0.3 nats per token", "read 12.5 tokens", "observed tokens are being trained"),
    ),
    "cut at a limit of episodes": (
        History(
            steps(20, truncated=0.5, **{"finish/stop": 0.5, "finish/length": 0.1, "finish/turns": 0.4}),
            config={"max_new_tokens": 48, "episodes": {"max_turns": 8}},
        ),
        "truncated",
        0.5,
        ("50% of the completions are cut at episodes.max_turns (8) and cannot finish: raise it",),
    ),
    "the same again": (
        History(steps(20), groups=groups([[0.0] * 8] + [[1.0, 0.0] * 4] * 2, texts=["It is 7.", "it is 7"] * 4)),
        "duplicates",
        1 / 8,
        ("only 12% of the wrong completions", "temperature"),
    ),
    "format is easy": (
        History(steps(20), groups=groups([[1.0, 0.2, 0.2, 1.0]] * 4, format=[0.2], correct=[0.8, 0.0])),
        "saturated_part",
        1.0,
        ("part format is 0.2 for 100%", "--loss.weights"),
    ),
    "no progress": (
        History(steps(60, reward_mean=lambda step: 0.3 + 0.05 * (-1) ** step)),
        "reward_flat",
        0.3,
        ("0.300 at first, 0.300 now", "raise lr"),
    ),
    "collapse": (
        History(steps(60, reward_mean=lambda step: 0.6 if step < 40 else 0.2)),
        "reward_fall",
        0.2,
        ("the reward has fallen to 0.20 from 0.60 (after 10 steps)", "lower lr"),
    ),
    "spike": (
        History(steps(40, grad_norm=lambda step: 30.0 if step == 34 else 1.5)),
        "spike",
        20.0,
        ("after 35 steps", "jumped to 30; its median before was 1.5"),
    ),
    "hacking": (
        History(steps(60, accuracy=0.4), FALLEN),
        "reward_hacking",
        0.40,
        # Steps 15 to 25: 0.3 + 0.005 · 20 − 0.02/11 = 0.398; steps 50 to 59: 0.3 + 0.005 · 54.5 = 0.5725.
        ("from 60% (after 20 steps) to 40%", "rose from 0.40 to 0.57 (the reward measures something else", "--best"),
    ),
    "overfitting": (
        History(steps(60), FALLEN),  # the accuracy on training problems rises with the reward
        "overfitting",
        0.40,
        ("from 60% (after 20 steps) to 40%", "rose from 0.40 to 0.57, and the accuracy on training problems", "--best"),
    ),
}


def judged(rewards: Sequence[float], right: int) -> list[Any]:
    """One group whose first `right` completions are correct, whatever they earn."""
    [group] = groups([rewards])
    for place, done in enumerate(group["completions"]):
        done["correct"] = place < right
    return [group]


def test_wrong_completions_that_earn_more_are_reward_hacking() -> None:
    """Right: 0.6 and 0.8, mean 0.7; wrong: 0.9 and 1.0, mean 0.95, gap 0.25. Both have 8 values and a variance of
    0.08/7 and 0.02/7, so the standard error is √(0.1/7/8) = 0.0423."""
    gamed = judged([0.6, 0.8] * 4 + [0.9, 1.0] * 4, right=8)
    [finding] = [each for each in diagnose(History(steps(20), groups=gamed)) if each.kind == "reward_hacking"]
    assert finding.value == pytest.approx(0.25)
    assert "wrong completions earn 0.95 on average and right ones 0.70" in finding.text
    close = judged([0.6, 0.8] * 4 + [0.7, 0.8] * 4, right=8)  # gap 0.05, under twice the error
    few = judged([0.6, 0.8] * 3 + [0.9, 1.0] * 5, right=6)
    unknown = groups([[0.6, 0.8] * 4 + [0.9, 1.0] * 4])
    for done in unknown[0]["completions"]:
        done["correct"] = None
    for found in (close, few, unknown):
        assert "reward_hacking" not in kinds(History(steps(20), groups=found))


def test_a_part_that_scores_some_completions_only() -> None:
    """By None it says nothing about a group; beside other completions of the group it tells them apart."""

    def found(*parts: Sequence[float | None]) -> list[str]:
        """By group, the part `rare` of its completions."""
        several = groups([[1.0, 0.2, 0.2, 1.0]] * len(parts), correct=[0.8, 0.0])
        for group, values in zip(several, parts, strict=True):
            for done, value in zip(group["completions"], values, strict=True):
                done["parts"]["rare"] = value
        record = History(steps(20), groups=several)
        return [finding.text for finding in diagnose(record) if finding.kind == "saturated_part"]

    one, none = [1.0] * 4, [None] * 4
    [text] = found(one, none, none)
    assert "part rare is 1 for 100% of the completions it scored and no longer distinguishes them" in text
    assert found(one, none, none, none, none) == [], "it scored few"
    assert found([1.0, None, None, 1.0], none) == [], "those that it scored earn more"
    [text] = found([0.0, None, None, 0.0], none)
    assert "part rare is 0 for 100% of the completions it scored" in text
    [text] = found(one, one)
    assert "part rare is 1 for 100% of the completions and no longer" in text


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
    assert kinds(History(steps(30, accuracy=0.95, **calm))) == [], "solved: nothing to explore"
    short = {"length_mean": lambda step: 20.0 if step < 15 else 8.0}
    assert kinds(History(steps(30, **short))) == [], "shorter and better"
    clipped = {"clip_high": 0.4}
    assert kinds(History(steps(20, **clipped), config={"loss": {"ratio": "sequence"}})) == [], "GSPO clips more"
    assert kinds(History(steps(20), groups=groups(MIXED, correct=[1.0, 0.0], format=[0.0, 1.0]))) == []
    corrected = {"loss": {"correction": "token"}}
    assert kinds(History(steps(20, sampler_gap=0.2), config=corrected)) == [], "weighed in"
    assert kinds(History(steps(20, zero_signal_groups=0.95, accuracy=0.95))) == [], "solved: nothing to learn"
    late = {"sampler_gap": lambda step: 0.0 if step else 0.09, "observation_tokens": 12.0}
    assert kinds(History(steps(20, **late))) == [], "half precision, at the first step"
    assert kinds(History(steps(20, sampler_gap=lambda step: 0.0 if step else 0.3))) == [], "nothing was observed"
    assert kinds(History(steps(20, ratio_max=lambda step: 50.0 if step > 17 else 2.0))) == [], "two odd steps"
    evals = [
        {"step": 0, "accuracy": 0.5, "low": 0.4, "high": 0.6},
        {"step": 60, "accuracy": 0.45, "low": 0.35, "high": 0.55},
    ]
    assert kinds(History(steps(60), evals)) == [], "within luck"
    lucky = History(steps(60, reward_mean=lambda step: 0.01 if step == 20 else 0.0))
    assert "reward_fall" not in kinds(lucky), "one right answer, and then none again"


def test_ranks_are_left_in_peace_where_little_is_lost() -> None:
    """Half of the time; and 80% of a step of a second, 0.8 s."""
    assert kinds(with_ranks(0.1, 0.5)) == []
    assert kinds(with_ranks(0.1, 0.8, seconds=1.0)) == []
    assert kinds(History(steps(20, seconds=4.0, **{"idle/0": 0.9}))) == [], "one rank"


def test_partial_rewards_teach_though_nothing_is_right() -> None:
    assert kinds(History(steps(20), groups=groups([[0.5, 0.2, 0.0, 0.1]] * 4))) == []
    assert kinds(History(steps(20), groups=groups([[0.5] * 4] * 4))) == ["all_wrong"]


def test_a_finding_is_reported_again_only_when_it_has_changed() -> None:
    record, *_ = PLANTED["cut"]
    [finding] = diagnose(record)
    assert finding.is_new_after(None)
    assert not finding.is_new_after(replace(finding, value=0.3))
    assert finding.is_new_after(replace(finding, value=0.25))
    assert finding.is_new_after(replace(finding, cause="length_growth")), "its cause is another"


# Causes and consequences


def collapse(step: int) -> float:
    """Mean reward of a run whose learning rate is too high: 37% for four steps, then nothing."""
    return 0.37 if step < 4 else 0.0


NOTHING_RIGHT = groups([[0.0] * 4] * 4, texts=["0"])
COLLAPSED = {
    "reward_mean": collapse,
    "accuracy": collapse,
    "reward_std": lambda step: 0.48 if step < 4 else 0.0,
    "zero_signal_groups": lambda step: 0.1 if step < 4 else 1.0,
}


@pytest.mark.parametrize("length", [10, 20, 60, 90])
def test_a_collapse_is_the_cause_from_the_first_diagnosis_on(length: int) -> None:
    """The reward fell to 0 after four steps: the advice is a lower lr, never easier problems."""
    first, *others = diagnose(History(steps(length, **COLLAPSED), groups=NOTHING_RIGHT))
    assert (first.kind, first.cause) == ("reward_fall", "")
    assert "from 0.37" in first.text
    assert first.text.endswith("lower lr, and start again from an earlier checkpoint")
    assert {"all_wrong", "duplicates"} <= {finding.kind for finding in others}
    for finding in others:
        assert finding.cause == "reward_fall"
        assert finding.text.endswith("; probably a consequence of the fall of the reward")
        assert finding.advice not in finding.text


def test_without_an_earlier_reward_wrong_answers_are_no_collapse() -> None:
    never = {"reward_mean": 0.0, "accuracy": 0.0, "reward_std": 0.0, "zero_signal_groups": 1.0}
    [first, *_] = diagnose(History(steps(20, **never), groups=NOTHING_RIGHT))
    assert first.kind == "all_wrong"
    assert "use easier problems" in first.text


def test_a_policy_that_the_first_updates_destroyed_is_found_before_ten_steps() -> None:
    lost = {"entropy": lambda step: 0.5 if step == 0 else 0.01, "kl": None}
    [finding] = diagnose(History(steps(2, **lost)))
    assert (finding.kind, finding.value) == ("diverged", 0.01)
    assert "entropy has fallen from 0.5 to 0.01 nats per token" in finding.text
    assert diagnose(History(steps(1, **lost))) == []
    assert diagnose(History(steps(3, **lost | {"accuracy": 0.95}))) == [], "a solved task"
    assert diagnose(History(steps(3, kl=0.9, entropy=None))) == []
    assert kinds(History(steps(10, kl=11.0))) == ["kl"], "from ten steps on there is more to judge by"


@pytest.mark.parametrize(("prompts", "found"), [(16, True), (1, False)])
def test_three_bad_steps_are_a_fall_only_beyond_chance(prompts: int, found: bool) -> None:
    """0.4 to 0.1 with standard deviation 0.49: two standard errors are 0.2 with 16 prompts a step, 0.8 with one."""
    noisy = {"reward_mean": lambda step: 0.4 if step < 7 else 0.1, "reward_std": 0.49, "zero_signal_groups": 0.5}
    record = History(steps(10, **noisy), config={"prompts_per_step": prompts})
    assert ("reward_fall" in kinds(record)) == found


@pytest.mark.parametrize(("prompts", "found"), [(64, True), (8, False)])
def test_a_fall_to_half_of_a_small_reward_counts_only_beyond_chance(prompts: int, found: bool) -> None:
    """0.03 to 0.01 with standard deviation 0.15: two standard errors of ten steps are 0.017 with 64 prompts a step, and
    0.047 with 8. Most groups of such a run are without signal, before and after."""
    rare = {"reward_mean": lambda step: 0.03 if 20 <= step < 30 else 0.01, "reward_std": 0.15}
    record = History(steps(50, **rare, zero_signal_groups=0.95), config={"prompts_per_step": prompts})
    assert ("reward_fall" in kinds(record)) == found


def finding_of(kind: str) -> Finding:
    return Finding(kind, 59, 1.0, kind, f"advice on {kind}", 59)


def test_every_chain_of_causes_ends() -> None:
    order = list(EXPLAINS)
    for cause, consequences in EXPLAINS.items():
        for kind in consequences:
            assert order.index(kind) > order.index(cause), f"{cause} explains {kind}"


def test_no_two_causes_give_contradictory_advice() -> None:
    """Raising lr is advised only where nothing asks for a lower one, or says that there is nothing to learn from."""
    advised = {finding.kind: finding.advice for record, *_ in PLANTED.values() for finding in diagnose(record)}
    lower = {kind for kind, advice in advised.items() if "lower lr" in advice}
    assert lower == {"diverged", "reward_fall", "spike", "ratios", "clipped", "kl", "entropy_collapse", "duplicates"}
    [higher] = [kind for kind, advice in advised.items() if "raise lr" in advice]
    for kind in lower | {"all_wrong", "unscored", "truncated", "no_signal"}:
        first, second = ranked([finding_of(higher), finding_of(kind)])
        assert (first.kind, second.kind, second.cause) == (kind, higher, kind)
        assert "advice on" not in second.text
    first, second = ranked([finding_of("truncated"), finding_of("length_growth")])
    assert (first.kind, second.cause) == ("length_growth", "length_growth"), "a higher limit would be more padding"


def test_every_cause_has_a_name() -> None:
    assert CAUSES.keys() == {kind for kind, consequences in EXPLAINS.items() if consequences}


def test_consequences_stand_under_their_cause() -> None:
    found = ranked([finding_of(kind) for kind in ("all_wrong", "saturated_part", "truncated", "sampler_gap", "kl")])
    assert [(finding.kind, finding.cause) for finding in found] == [
        ("sampler_gap", ""),
        ("kl", "sampler_gap"),
        ("truncated", ""),
        ("all_wrong", "truncated"),
        ("saturated_part", ""),
    ]


def test_a_running_trainer_reads_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = Run.metrics

    def metrics(self: Run, since: int = 0) -> Any:
        rows = real(self, since)
        read.extend(row["step"] for row in rows)
        return rows

    monkeypatch.setattr(Run, "metrics", metrics)
    with Run.create(tmp_path, "long", kind="grpo", config={}) as run:
        monitor, reported = Monitor(run), []
        for row in steps(80, kl=lambda step: 1.0 if step > 30 else 0.0, truncated=0.5):
            step = row.pop("step")
            run.record(step, [], row, {})
            if (step + 1) % 10 == 0:
                for finding in monitor.new_findings(step):
                    reported.append((finding.kind, finding.step))
                    run.add_finding(finding.kind, finding.text, step)
        assert read == list(range(80))
        # KL over the last ten steps: 0.9 after 40 steps, then 1.0, which is no news.
        assert reported == [("truncated", 9), ("kl", 39)]
        read.clear()
        resumed = Monitor(run)
        assert resumed.new_findings(79) == [], "a resumed run repeats nothing"
        assert len(resumed.history.last_rows) == 80


def test_a_cause_that_comes_and_goes_is_not_reported_every_time(tmp_path: Path) -> None:
    """The KL divergence is large in every other window, and then explains the completions that are all alike."""
    with Run.create(tmp_path, "noisy", kind="grpo", config={}) as run:
        monitor, reported = Monitor(run), []
        for row in steps(200, zero_signal_groups=1.0, kl=lambda step: float(step // 10 % 2)):
            step = row.pop("step")
            run.record(step, [], row, {})
            if (step + 1) % 10 == 0:
                reported += [(found.kind, step + 1, found.cause) for found in monitor.new_findings(step)]
    assert [(steps, cause) for kind, steps, cause in reported if kind == "no_signal"] == [
        (10, ""),
        (20, "kl"),
        (30, ""),
        (60, "kl"),
        (90, ""),
        (140, "kl"),
    ]


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
        assert Monitor(run).new_findings(9) == [], "already reported"
        assert any("cut at max_new_tokens (5)" in line for line in result(run, 100))
        assert run.summary()["findings"] == run.findings()
    with grpo.train(settings(tmp_path, max_new_tokens=5, steps=20, resume=True)) as run:
        assert [each for each in told(run) if each[0] == "truncated"] == [("truncated", 9)]
        assert told(run)[: len(first)] == first


def test_a_ruinous_learning_rate_is_the_first_finding(tmp_path: Path) -> None:
    """It takes nano from 44% to next to nothing within ten steps."""
    with grpo.train(settings(tmp_path, steps=10, lr=0.01, prompts_per_step=8)) as run:
        rewards = [value for _, value in run.series("reward_mean")]
        assert rewards[0] > 0.3
        assert max(rewards[-5:]) < 0.1
        assert told(run)[0] == ("reward_fall", 9)
        assert not [row for row in run.findings() if "easier" in row["text"]]
        lines = [line for line in result(run, 100) if line.startswith("findings")]
        assert "the reward has fallen to 0.0" in lines[0]


def test_a_healthy_run_is_left_in_peace(tmp_path: Path) -> None:
    with grpo.train(settings(tmp_path, steps=30, lr=3e-4, prompts_per_step=16, group_size=8)) as run:
        assert told(run) == []


def test_every_finding_is_documented() -> None:
    page = (DOCS / "diagnosis.md").read_text()
    documented = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    assert documented == list(KINDS)
    for kind in KINDS:
        causes = ", ".join(cause for cause in KINDS if kind in EXPLAINS[cause])
        assert not causes or f"| {kind} | {causes} |\n" in page
    assert {finding.kind for record, *_ in PLANTED.values() for finding in diagnose(record)} == set(KINDS)
