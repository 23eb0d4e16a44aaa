"""Intervals against the tables, sentences worked out by hand, and a comparison that is interrupted and goes on."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.commands.compare import split
from grpo.cli.compare import runner
from grpo.cli.compare.intervals import incomplete_beta, mean_interval, paired_interval, t_quantile
from grpo.cli.compare.jobs import Job, default_name, make_jobs
from grpo.cli.compare.results import RunResult, conclusions, differences, operations, phase_shares, read, summarise
from grpo.cli.compare.runner import is_finished, run_all
from grpo.cli.main import main
from grpo.config import Config, Evaluation, System
from grpo.errors import GrpoError
from grpo.model.plan import Work, find_shape, flops, needs
from grpo.record.lock import RunLock

SMALL = ["--model", "nano", "--steps", "2", "--prompts-per-step", "2", "--group-size", "4", "--max-new-tokens", "24"]
QUICK = [*SMALL, "--evaluation.problems", "20", "--evaluation.every", "0", "--system.threads", "1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Student's t: the two-sided tables of any statistics book.


@pytest.mark.parametrize(
    ("probability", "degrees", "tabulated"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 5, 2.57058),
        (0.975, 10, 2.22814),
        (0.975, 30, 2.04227),
        (0.95, 4, 2.13185),
        (0.995, 2, 9.92484),
        (0.9995, 5, 6.86883),
        (0.9995, 2, 31.5991),
        (0.975, 1000, 1.96234),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, degrees: int, tabulated: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(tabulated, rel=2e-6 if degrees > 1 else 5e-6)


def test_the_beta_function_by_hand() -> None:
    """I(x; 1, 1) = x, I(x; 2, 1) = x², I(x; 1, 2) = 1 − (1 − x)², and I(1/2; a, a) = 1/2."""
    for x in (0.01, 0.3, 0.9, 0.999):
        assert incomplete_beta(x, 1, 1) == pytest.approx(x, rel=1e-12)
        assert incomplete_beta(x, 2, 1) == pytest.approx(x * x, rel=1e-12)
        assert incomplete_beta(x, 1, 2) == pytest.approx(1 - (1 - x) ** 2, rel=1e-12)
    assert incomplete_beta(0.5, 7.5, 7.5) == pytest.approx(0.5, rel=1e-12)
    assert t_quantile(0.75, 1) == pytest.approx(1.0, rel=1e-9), "Cauchy's upper quartile is 1"


def test_paired_interval_by_hand() -> None:
    """Differences 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, half-width 4.30265 · 0.1/√3 = 0.24841."""
    found = paired_interval([0.6, 0.8, 0.7], [0.5, 0.6, 0.4])
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, -0.04841, 0.44841), abs=1e-5)
    assert mean_interval([0.4]).high == math.inf


# In words


def run(seed: int, accuracy: float, **changes: Any) -> RunResult:
    settings = {"rewards": [0.0, accuracy], "tokens": [10.0, 20.0], "seconds": [1.0, 2.0], "problems": 500}
    return RunResult(seed=seed, evals=[(0, 0.3), (2, accuracy)], memory=2.0**30, operations=1e9, **(settings | changes))


def arms(**accuracies: list[float]) -> dict[str, list[RunResult]]:
    return {name: [run(i + 1, value) for i, value in enumerate(values)] for name, values in accuracies.items()}


def test_a_clear_case_is_told_and_luck_is_not() -> None:
    clear = arms(good=[0.90, 0.92, 0.91], bad=[0.50, 0.53, 0.51])
    [sentence] = conclusions(clear)
    assert sentence.startswith("good is better than bad by 39.7% of held-out problems [")
    assert sentence.endswith("statistically significant.")
    # Differences 0.40, 0.39, 0.40: mean 0.39667, deviation 0.0057735, error 0.0033333; what 500 problems can resolve,
    # √((0.91·0.09 + 0.51333·0.48667)/500/3), is larger: 0.014862, times 4.30265.
    [found] = differences(clear)
    error = math.sqrt((0.91 * 0.09 + 0.513333 * 0.486667) / 500 / 3)
    assert found.interval.low == pytest.approx(0.396667 - 4.30265 * error, abs=1e-5)
    [sentence] = conclusions(arms(one=[0.90, 0.95, 0.85], other=[0.86, 0.84, 0.90]))
    assert sentence.startswith("No difference is statistically significant with 3 seeds; the largest is one over")


def test_equal_differences_are_not_believed_beyond_what_the_problems_resolve() -> None:
    """0.4 points in each of three seeds: without spread, and yet two problems of 500."""
    [sentence] = conclusions(arms(one=[0.904, 0.914, 0.924], other=[0.900, 0.910, 0.920]))
    assert "No difference" in sentence


def test_runs_without_accuracy_are_compared_by_their_held_out_reward() -> None:
    """Differences 5, 5.2, 4.8: mean 5, deviation 0.2, error 0.2/√3, times 4.30265. A reward may exceed 1."""
    found = {
        name: [run(i + 1, value, measure="reward_mean") for i, value in enumerate(values)]
        for name, values in {"good": [7.0, 7.2, 6.9], "bad": [2.0, 2.0, 2.1]}.items()
    }
    half = 4.30265 * 0.2 / math.sqrt(3)
    assert conclusions(found) == [
        f"good is better than bad by 5.000 of held-out reward [{5 - half:.3f} to {5 + half:.3f}], "
        "statistically significant."
    ]
    assert summarise(found)["good"]["held_out"].high > 1


def test_intervals_of_all_pairs_hold_together() -> None:
    three = arms(a=[0.9, 0.8, 0.85], b=[0.7, 0.75, 0.6], c=[0.5, 0.5, 0.45])
    found = {(each.better, each.worse): each.interval for each in differences(three)}
    a, b = [0.9, 0.8, 0.85], [0.7, 0.75, 0.6]
    assert found["a", "b"].low == pytest.approx(max(-1, paired_interval(a, b, level=1 - 0.05 / 3).low))
    assert found["a", "b"].low < paired_interval(a, b).low


def test_operations_count_what_was_drawn_and_what_was_trained_on() -> None:
    dapo = Config(algorithm="dapo", prompts_per_step=4)
    row = {"groups_drawn": 10.0, "groups_kept": 3.0, "gradient_tokens": 0.5}
    shares = phase_shares(row, dapo)
    assert (shares["rollout"], shares["update"], shares["old policy"]) == (2.5, 0.375, 0.375)
    assert phase_shares({}, dapo)["update"] == 0  # no update was taken
    # A KL divergence in the loss is computed for every group.
    assert phase_shares({"gradient_tokens": 0.5}, Config(algorithm="grpo"))["update"] == 1
    assert phase_shares({"gradient_tokens": 0.5}, Config(algorithm="dr_grpo"))["update"] == 0.5


def test_one_seed_tells_nothing() -> None:
    assert conclusions(arms(a=[0.9], b=[0.1])) == ["One seed each: differences may be chance; add seeds (--seeds 3)."]


# What is run


def test_the_same_settings_get_the_same_names() -> None:
    first, second = (default_name("", ["--steps", steps]) for steps in ("5", "6"))
    assert first == default_name("", ["--steps", "5"]) != second
    assert default_name("", ["--lr", "1", "--beta", "2"]) != default_name("", ["--lr", "2", "--beta", "1"])
    jobs = make_jobs(["grpo", "reinforce++"], 2, "x", ["--steps", "5"])
    assert [job.name for job in jobs] == ["x-grpo-s1", "x-reinforcepp-s1", "x-grpo-s2", "x-reinforcepp-s2"]
    assert [(job.config.seed, job.config.algorithm, job.config.steps) for job in jobs[:2]] == [
        (1, "grpo", 5),
        (1, "reinforce++", 5),
    ]
    assert jobs[0].config.resume


def test_recipes_are_arms_unless_presets_are(elsewhere: Path) -> None:
    (elsewhere / "slow.toml").write_text("lr = 1e-6\n")
    (elsewhere / "fast.toml").write_text("lr = 1e-3\n")
    jobs = make_jobs([], 1, "x", ["slow.toml", "fast.toml", "--steps", "3"])
    assert [(job.arm, job.config.lr, job.config.steps) for job in jobs] == [("slow", 1e-6, 3), ("fast", 1e-3, 3)]
    jobs = make_jobs(["grpo", "dapo"], 1, "x", ["slow.toml"])
    assert [(job.arm, job.config.lr) for job in jobs] == [("grpo", 1e-6), ("dapo", 1e-6)]


def test_words_are_told_apart() -> None:
    ours, train_arguments = split(
        ["a.toml", "--seeds", "3", "--steps", "5", "--json", "--algorithms=grpo,dapo", "--resume"]
    )
    assert ours == ["--seeds", "3", "--json", "--algorithms=grpo,dapo"]
    assert train_arguments == ["a.toml", "--steps", "5", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["--algorithms", "grpo"], ("field algorithms", "at least two different")),
        (["--algorithms", "grpo,grpo"], ("field algorithms", "at least two different")),
        (["--algorithms", "grpo,gropo"], ("field algorithm", 'did you mean "grpo"')),
        (["--algorithms", "grpo,dapo", "--seeds", "0"], ("field seeds", "at least 1")),
        (["--algorithms", "grpo,dapo", "--jobs", "-1"], ("field jobs", "at least 0")),
        (["one.toml", "other.toml"], ("one.toml", "no such file")),
        (["--algorithms", "grpo,dapo", "--seed", "4"], ("field seed", "leave it out")),
        (["--algorithms", "grpo,dapo", "--stepz", "4"], ("field stepz", "--steps")),
        (["--algorithms", "grpo,dapo", "--name", "a/b"], ("field name", "no folder")),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], fragments: tuple[str, ...], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert all(fragment in line for fragment in fragments), line
    assert not (elsewhere / "runs").exists()


def test_runs_at_once_share_the_cores_with_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores: eight runs of one rank, two of three ranks, and never fewer than one."""
    monkeypatch.setattr(runner, "usable_cores", lambda: 8)
    monkeypatch.setattr("grpo.model.device.free_memory", lambda device: 10**12)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for ranks, at_once in ((1, 8), (3, 2), (16, 1)):
        jobs = make_jobs(["grpo", "dapo"], 4, "x", ["--model", "nano", "--gpus", str(ranks)])
        assert runner.jobs_at_once(jobs) == at_once
        assert {job.config.scale.gpus for job in jobs} == {ranks}
    with pytest.raises(GrpoError, match=r"^field scale\.nodes: a comparison trains on one host; leave it out$"):
        make_jobs(["grpo", "dapo"], 1, "x", ["--nodes", "2", "--join", "gpu-1:29500"])


def test_without_matplotlib_nothing_starts(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert main(["compare", "--algorithms", "grpo,dapo", *QUICK]) == 2
    assert 'pip install "grpo-lab[plot]"' in capsys.readouterr().err
    assert not (elsewhere / "runs").exists()


def test_a_comparison_goes_on_where_it_stopped(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run is there already, one is half done and still held by another trainer, two are to be started."""
    pytest.importorskip("matplotlib.pyplot")  # the first import on a machine starts processes of its own
    command = ["compare", "--algorithms", "grpo,dr_grpo", "--seeds", "2", "--jobs", "2", "--name", "x", *QUICK]
    jobs = make_jobs(["grpo", "dr_grpo"], 2, "x", QUICK)
    assert main(["train", *jobs[0].arguments]) == 0
    assert main(["train", *jobs[1].arguments, "--steps", "1"]) == 0
    assert [is_finished(job) for job in jobs] == [True, False, False, False]
    other_trainer = RunLock(jobs[1].folder / jobs[1].name)
    started: list[str] = []
    popen, sleep = runner.subprocess.Popen, runner.time.sleep

    def start(words: list[str], **options: Any) -> Any:
        started.append(words[words.index("--run") + 1])
        return popen(words, **options)

    def pass_time(seconds: float) -> None:
        if len(started) == 2:
            other_trainer_ends()
        sleep(seconds)

    def other_trainer_ends() -> None:
        if not ended:
            ended.append(True)
            other_trainer.close()

    ended: list[bool] = []
    monkeypatch.setattr(runner.subprocess, "Popen", start)
    monkeypatch.setattr(runner.time, "sleep", pass_time)
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert sorted(started) == ["x-dr_grpo-s1", "x-dr_grpo-s2", "x-grpo-s2"]
    first = json.loads(capsys.readouterr().out)
    assert Path("x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    started.clear()
    assert main([*command, "--json"]) == 0
    assert started == [], "all is done"
    assert json.loads(capsys.readouterr().out) == first
    assert list(first["arms"]) == ["grpo", "dr_grpo"]
    found = [read(job) for job in jobs]
    assert first["arms"]["grpo"]["accuracy"]["mean"] == pytest.approx((found[0].held_out + found[2].held_out) / 2)
    assert found[0].problems == 20
    assert len(found[0].rewards) == 2
    assert found[0].tokens[-1] == sum(found[0].tokens[i] - (found[0].tokens[i - 1] if i else 0) for i in range(2))
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "held-out accuracy" in printed
    assert "seeds" in printed


def test_a_comparison_from_a_run_goes_on_too() -> None:
    assert main(["train", *QUICK, "--task", "arithmetic:easy", "--run", "base"]) == 0
    job, _ = make_jobs(["grpo", "dr_grpo"], 1, "job", ["--model", "base", *QUICK[2:]])
    assert (job.config.model, job.config.task) == ("runs/base/checkpoints/step-000002/model", "arithmetic:easy")
    assert not is_finished(job)
    assert main(["train", *job.arguments]) == 0
    assert is_finished(job)


def test_a_run_that_fails_is_told_and_ends_the_comparison(elsewhere: Path) -> None:
    jobs = make_jobs(["grpo", "dr_grpo"], 1, "x", [*QUICK, "--system.device", "cuda:7"])
    with pytest.raises(GrpoError, match=r"run x-grpo-s1: field system.device: cuda:7: no GPU was found"):
        run_all(jobs, 1, lambda running, done: None)


def test_operations_count_what_was_drawn_and_what_took_part(tmp_path: Path) -> None:
    """Twice the groups drawn is twice the rollout; half the tokens without gradient is half the update."""
    config = Config(
        model="nano", algorithm="dr_grpo", steps=1, prompts_per_step=2, group_size=4, max_new_tokens=8, run="one",
        evaluation=Evaluation(every=0, problems=4, probes=0), system=System(runs=str(tmp_path)),
    )  # fmt: skip
    with grpo.train(config) as run:
        job = Job(arm="dr_grpo", seed=1, name="one", arguments=(), config=config)
        found = operations(job, run, [{"length_mean": 5.0, "groups_drawn": 4.0, "gradient_tokens": 0.5}])
        prompt = round(sum(len(group["prompt"]) for group in run.groups(0)) / 2)
    parts = flops(find_shape("nano"), replace(Work.of(config, prompt), new_tokens=5), needs(config.loss, config.critic))
    assert found == pytest.approx(2 * parts["rollout"] + 0.5 * parts["update"])


def test_ranks_share_the_cores_with_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "usable_cores", lambda: 8)
    monkeypatch.setattr("grpo.model.device.free_memory", lambda _: 2**50)

    def at_once(*flags: str) -> int:
        return runner.jobs_at_once(make_jobs(["grpo", "dapo", "gspo"], 4, "c", [*SMALL, "--device", "cpu", *flags]))

    assert (at_once(), at_once("--gpus", "2"), at_once("--gpus", "3"), at_once("--gpus", "16")) == (8, 4, 2, 1)
    with pytest.raises(GrpoError, match=r"^field scale\.nodes: a comparison trains on one host; leave it out$"):
        at_once("--nodes", "2", "--join", "here:29500")
