"""Gradients and weights that are not finite: no update, a finding, and a stop after three in a row."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from grpo.cli.main import main
from grpo.config import Optimizer
from grpo.config.schema import parse_train
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.optimizer import make_optimizer, take_step
from grpo.record.checkpoints import Checkpoints
from grpo.record.store import Run
from grpo.training.session import Session
from helpers.faults import findings, last_step, status, tree
from helpers.trainer import Orders, Trainer, command, poisoned


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_update_with_a_gradient_that_is_not_finite_changes_nothing(value: float) -> None:
    policy = load_policy("nano")
    optimizer = make_optimizer(policy, Optimizer(weight_decay=0.1))

    def gradients(last: float) -> None:
        for weight in policy.model.parameters():
            weight.grad = torch.ones_like(weight)
        weight.grad.view(-1)[-1] = last

    gradients(1.0)
    assert take_step(policy, optimizer, lr=0.01, grad_clip=1.0) > 1
    before = [tensor.clone() for tensor in (*policy.weights().values(), *dict(optimizer.state()).values())]
    gradients(value)
    norm = take_step(policy, optimizer, lr=0.01, grad_clip=1.0)
    assert not torch.isfinite(torch.tensor(norm))
    after = [*policy.weights().values(), *dict(optimizer.state()).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert policy.version == 1
    assert all(weight.grad is None for weight in policy.model.parameters())
    gradients(1.0)
    take_step(policy, optimizer, lr=0.01, grad_clip=1.0)
    assert policy.version == 2
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "all of it moves again"


EACH = ("--checkpoint-every", "1", "--checkpoints.keep", "9")


def nonfinite(step: int) -> tuple[str, int, str]:
    problems = ", ".join(f"train/{step}/{index}" for index in range(4))
    return "nonfinite", step, f"step {step}: the gradient was not finite, no update taken; problems {problems}"


def test_one_step_that_is_not_finite_is_skipped_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(frozenset([2])))
    assert main(command(tmp_path, "job", *EACH)) == 0
    assert capsys.readouterr().err == f"grpo: {nonfinite(2)[2]}\n"
    run = tmp_path / "job"
    assert findings(run) == [nonfinite(2)]
    with Run.open(tmp_path, "job") as record:
        assert [row["skipped_updates"] for row in record.metrics()] == [0, 0, 1, 0, 0, 0]
        assert [row["updates"] for row in record.metrics()] == [1, 1, 0, 1, 1, 1]
        assert [record.groups(step)[0]["policy_version"] for step in range(6)] == [0, 1, 2, 2, 3, 4]
    checkpoints = Checkpoints(run)
    states = [checkpoint.state for checkpoint in checkpoints._all()]
    assert [state["policy_version"] for state in states] == [1, 2, 2, 3, 4, 5]
    assert [state["nonfinite_steps"] for state in states] == [0, 0, 1, 0, 0, 0]
    files = [tree(checkpoint.path) for checkpoint in checkpoints._all()]
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        assert files[1][name] == files[2][name], "the step left no trace"
        assert len({file[name] for file in files}) == 5, "and all others did"


@pytest.mark.parametrize(
    ("steps", "last"), [({0, 1, 3, 4}, None), ({1, 2, 3}, 3), ({0, 2, 3, 4, 5}, 4), ({3, 4, 5}, 5)]
)
def test_three_in_a_row_stop_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    steps: set[int],
    last: int | None,
) -> None:
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(frozenset(steps)))
    assert main(command(tmp_path, "job", *EACH)) == (0 if last is None else 2)
    run = tmp_path / "job"
    told = sorted(step for step in steps if last is None or step <= last)
    assert findings(run) == [nonfinite(step) for step in told]
    lines = [f"grpo: {nonfinite(step)[2]}" for step in told]
    if last is None:
        assert capsys.readouterr().err.splitlines() == lines
        assert (status(run), last_step(run)) == ("finished", 5)
        return
    assert capsys.readouterr().err.splitlines() == [
        *lines,
        f"grpo: field lr: 3 steps in a row had a gradient that was not finite, the last is step {last}; lower lr "
        "(now 0.001) and start again, or resume from an earlier checkpoint",
    ]
    assert (status(run), last_step(run)) == ("failed", last)
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.damage()) == (last, "")
    assert all(weight.isfinite().all() for weight in load_policy(str(checkpoint.model)).model.parameters())


def test_the_count_of_steps_in_a_row_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = frozenset([2, 3, 4])
    orders = Orders(kill_at="record.begun", count=5, nonfinite=steps)
    trainer = Trainer(command(tmp_path, "job", *EACH), tmp_path, orders)
    assert trainer.ended() == -signal.SIGKILL
    assert last_step(tmp_path / "job") == 3
    monkeypatch.setattr("grpo.training.loop.accumulate_gradients", poisoned(steps))
    assert main(command(tmp_path, "job", *EACH)) == 2
    assert "the last is step 4;" in capsys.readouterr().err


def test_a_learning_rate_that_ruins_the_model_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "job", "--lr", "1e6")) == 2
    before, *warnings, line = capsys.readouterr().err.splitlines()
    assert before.startswith("grpo: lr 1e+06 is ")
    assert line.startswith("grpo: field lr: 3 steps in a row had a gradient that was not finite, the last is step ")
    assert "lower lr (now 1e+06)" in line
    assert len(warnings) == 3
    run = tmp_path / "job"
    assert status(run) == "failed"
    assert [kind for kind, _, _ in findings(run)] == ["assumed", *["nonfinite"] * 3]
    for checkpoint in Checkpoints(run)._all():
        assert checkpoint.damage() == ""
        assert all(weight.isfinite().all() for weight in load_policy(str(checkpoint.model)).model.parameters())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    session = Session.start(parse_train(command(tmp_path)[1:]), [])
    with session.recorded():
        session.checkpoint(1)
        with torch.no_grad():
            session.policy.model.model.norm.weight[3] = float("inf")
        with pytest.raises(GrpoError, match=r"^weight model\.norm\.weight is not finite after 2 steps"):
            session.checkpoint(2)
    assert os.listdir(tmp_path / "job" / "checkpoints") == ["step-000001"]
    session.run.close()
