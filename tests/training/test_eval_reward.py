"""Rewards of evaluations apart from training's, and the metric that the best checkpoint follows."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

import grpo
from grpo.cli.main import main
from grpo.config import Checkpoints, Evaluation
from grpo.errors import GrpoError
from grpo.record.checkpoints import Checkpoints as Folder
from grpo.record.store import Run
from helpers.runs import small

MINE = """
def long(problem, text):
    return float(len(text))

def digits(completions, **columns):
    return [-0.5 * sum(c.isdigit() for c in text) for text in completions]
"""
FLAGS = [
    *("--model", "nano", "--task", "arithmetic:easy", "--system.device", "cpu", "--steps", "1", "--run", "job"),
    *("--prompts-per-step", "2", "--group-size", "4", "--evaluation.problems", "8", "--evaluation.probes", "1"),
    *("--scoring.workers", "1", "--quiet", "--reward", "mine.py:long"),
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)


def digits_of(text: str) -> float:
    return -0.5 * sum(character.isdigit() for character in text)


def test_evaluations_have_a_reward_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Training is rewarded by length, evaluations and probes by digits; accuracy is the task's. `grpo eval` repeats the
    run's own evaluation, `grpo sample` scores as training does."""
    assert main(["train", *FLAGS, "--evaluation.reward", "mine.py:digits*2"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        assert all(row["reward"] == len(row["text"]) for row in run.completions())
        last = run.evals()[-1]
        done = [row for group in run.eval_groups(1) for row in group["completions"]]
        assert [row["reward"] for row in done] == [2 * digits_of(row["text"]) for row in done]
        assert last["reward_mean"] == pytest.approx(fmean(row["reward"] for row in done), abs=1e-12)
        assert last["part/digits"] == pytest.approx(last["reward_mean"] / 2, abs=1e-12)
        assert last["accuracy"] == fmean(row["correct"] for row in done)
        probes = [sample for probe in run.probes() for sample in probe["samples"]]
        assert [sample["reward"] for sample in probes] == [2 * digits_of(sample["text"]) for sample in probes]
        assert run.config["evaluation"]["reward"] == "mine.py:digits*2"
        prompt = run.groups(0)[0]["prompt"]
    capsys.readouterr()
    assert main(["eval", "job", "--problems", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reward_mean"] == last["reward_mean"]
    assert main(["sample", "job", prompt, "-n", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["completions"]
    assert [row["reward"] for row in shown] == [float(len(row["text"])) for row in shown]


def test_a_resume_must_keep_the_reward_of_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    reward = ["--evaluation.reward", "mine.py:digits"]
    assert main(["train", *FLAGS, *reward]) == 0
    assert main(["train", *FLAGS, "--steps", "2", "--resume"]) == 2
    assert "evaluation.reward was 'mine.py:digits', is ''" in capsys.readouterr().err
    Path("mine.py").write_text(MINE.replace("0.5", "0.25"))
    assert main(["train", *FLAGS, *reward, "--steps", "2", "--resume"]) == 2
    assert "evaluation.reward code: mine.py changed" in capsys.readouterr().err
    Path("mine.py").write_text(MINE)
    assert main(["train", *FLAGS, *reward, "--steps", "2", "--resume", "--evaluation.every", "1"]) == 0


def test_a_function_is_handed_over(tmp_path: Path) -> None:
    config = small(tmp_path, steps=1, task="arithmetic:easy")
    with grpo.train(
        config, reward=lambda problem, text: 1.0, eval_reward=[(lambda problem, text: float(len(text)), 0.5)]
    ) as run:
        assert run.config["evaluation"]["reward"] == "python:lambda*0.5"
        assert {row["reward"] for row in run.completions()} == {1.0}
        done = [row for group in run.eval_groups(1) for row in group["completions"]]
        assert [row["reward"] for row in done] == [0.5 * len(row["text"]) for row in done]
    both = small(tmp_path, evaluation=Evaluation(reward="task"))
    with pytest.raises(GrpoError, match=r"^field evaluation.reward: set in the config and handed over"):
        grpo.train(both, eval_reward="task")


def test_the_best_checkpoint_follows_what_is_named(tmp_path: Path) -> None:
    """Accuracy, the mean reward and a part are best at different steps; each kind of run keeps its own checkpoint."""
    with Run.create(tmp_path, "job", kind="grpo", config={}) as run:
        rows = [
            {"accuracy": 0.5, "reward_mean": 1.0, "part/brief": 0.0, "worked_share": 0.2},
            {"accuracy": 0.9, "reward_mean": 2.0, "part/brief": -1.0, "worked_share": 0.3, "logged/hits": 4.0},
            {"accuracy": 0.4, "reward_mean": 3.0, "part/brief": -2.0, "worked_share": 0.4, "logged/hits": 4.0},
            {"accuracy": 0.4, "reward_mean": 0.0, "part/brief": 0.0, "worked_share": 0.5, "logged/hits": 1.0},
        ]
        for step, row in enumerate(rows):
            run.record_eval(step, row, [])
        expected = {"": 1, "accuracy": 1, "reward": 2, "reward_mean": 2, "worked": 3, "worked_share": 3, "hits": 1}
        # A tie of `brief`, 0 at steps 0 and 3: the higher accuracy decides.
        for wanted, step in {**expected, "brief": 0, "part/brief": 0, "absent": None}.items():
            run.config = {"checkpoints": {"best": wanted}}
            assert run.best_step() == step, wanted


def test_a_run_keeps_the_checkpoint_of_the_named_metric() -> None:
    """The reward of length rises and falls again; accuracy would keep another checkpoint."""
    named = ["--reward", "mine.py:long, mine.py:digits", "--checkpoints.best", "long", "--checkpoints.keep", "1"]
    assert main(["train", *FLAGS, *named, "--steps", "4", "--evaluation.every", "1", "--lr", "1e-3"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        best = max(run.evals(), key=lambda row: (row["part/long"], row["accuracy"], row["reward_mean"], -row["step"]))
        assert 0 < best["step"] < 4
        assert run.best_step() == best["step"]
        assert [step for step in range(5) if Folder(run.path).at(step)] == [best["step"], 4]


def test_a_name_that_evaluations_do_not_have_is_refused_before_the_first_step(tmp_path: Path) -> None:
    config = small(tmp_path, task="arithmetic:easy", checkpoints=Checkpoints(best="brief"), run="job")
    with pytest.raises(GrpoError) as caught:
        grpo.train(config)
    assert str(caught.value) == (
        "field checkpoints.best: evaluations of this run have no 'brief'; they have accuracy, low, high, "
        "greedy_accuracy, greedy_low, greedy_high, reward, length_mean, correct, worked_share"
    )


def test_a_length_reward_on_rows_without_golds_has_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    """A random policy with a reward above 1: nothing says what is correct, and the mean reward picks the best."""
    Path("rows.jsonl").write_text("".join(json.dumps({"prompt": f"{a}+{a}="}) + "\n" for a in range(10, 60)))
    flags = (
        "--model nano --data rows.jsonl --reward mine.py:long --steps 2 --prompts-per-step 2 --group-size 4 --run job "
        "--evaluation.every 1 --evaluation.problems 8 --system.device cpu --scoring.workers 1"
    )
    assert main(["train", *flags.split()]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert all(word not in printed for word in ("accuracy", " right", "95%", "100.0%"))
    with Run.open(Path("runs"), "job", readonly=True) as run:
        evals = run.evals()
        assert all(row["accuracy"] is None and row["greedy_accuracy"] is None for row in evals)
        assert run.best_step() == max(evals, key=lambda row: (row["reward_mean"], -row["step"]))["step"]
