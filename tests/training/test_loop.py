"""The loop: what it leaves in the weights and in the record."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import grpo
from grpo.cli.terminal.live import LinesView
from grpo.config import Config, Evaluation, Optimizer
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.optimizer import lr_warnings, make_optimizer
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.metrics import is_timed
from grpo.record.store import Run
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.annotations import add_old_logprobs
from grpo.training.loop import accumulate_gradients, contributing, credit, minibatches, update
from grpo.training.session import Session
from grpo.types import Problem
from helpers.groups import annotated, random_groups
from helpers.policies import random_policy
from helpers.runs import small


def weights(run: Run) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoints(run.path).newest()
    assert checkpoint is not None
    return load_policy(str(checkpoint.model)).model.state_dict()


def timeless(run: Run) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if not is_timed(name)} for row in run.metrics()]


def assert_same_run(a: Run, b: Run) -> None:
    assert timeless(a) == timeless(b)
    assert a.evals() == b.evals()
    for step in range(len(a.metrics())):
        assert a.groups(step) == b.groups(step)
    left, right = weights(a), weights(b)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


class Constant(Arithmetic):
    """Pays everybody the same."""

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        return {"same": 1.0}


def test_a_run_repeated_with_the_same_seed_is_bit_identical(tmp_path: Path) -> None:
    two_updates = Optimizer(epochs=1, minibatches=2)
    first, second, other = (
        grpo.train(small(tmp_path, run=name, seed=seed, optimizer=two_updates))
        for name, seed in (("first", 1), ("second", 1), ("other", 2))
    )
    assert_same_run(first, second)
    assert timeless(first) != timeless(other)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = grpo.train(small(tmp_path, run="whole", steps=4))
    grpo.train(small(tmp_path, run="parts", steps=2)).close()
    resumed = grpo.train(small(tmp_path, run="parts", steps=4, resume=True))
    assert [row["step"] for row in resumed.metrics()] == [0, 1, 2, 3]
    left, right = weights(whole), weights(resumed)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert timeless(whole) == timeless(resumed)


def test_resume_forgets_steps_after_the_checkpoint_and_makes_them_again(tmp_path: Path) -> None:
    class Crash(Callback):
        def on_step(self, step: int, *_: object) -> None:
            if step == 2:
                raise RuntimeError("power cut")

    whole = grpo.train(small(tmp_path, run="whole", steps=4, checkpoint_every=2))
    with pytest.raises(GrpoError, match="power cut"):
        grpo.train(small(tmp_path, run="torn", steps=4, checkpoint_every=2), callbacks=[Crash()])
    with Run.open(tmp_path, "torn") as torn:
        assert torn.summary()["status"] == "failed"
        assert torn.last_step() == 2
    assert_same_run(whole, grpo.train(small(tmp_path, run="torn", steps=4, checkpoint_every=2, resume=True)))


def test_resume_starts_a_run_that_does_not_exist_and_refuses_another_experiment(tmp_path: Path) -> None:
    grpo.train(small(tmp_path, run="job", steps=1, resume=True)).close()
    with pytest.raises(GrpoError, match=r"field resume: job began with other inputs: lr was 3e-05, is 0.5;"):
        grpo.train(small(tmp_path, run="job", steps=2, resume=True, lr=0.5))
    with pytest.raises(GrpoError, match="field resume: no run is named"):
        grpo.train(small(tmp_path, resume=True))
    with pytest.raises(GrpoError, match=r"field run: job exists .*--resume.*--run OTHER"):
        grpo.train(small(tmp_path, run="job"))


def test_every_completion_is_recorded_exactly_once(tmp_path: Path) -> None:
    run = grpo.train(small(tmp_path))
    summary = run.summary()
    assert summary["name"] == "arithmetic-easy-grpo-001"
    assert summary["status"] == "finished"
    assert summary["steps"] == 3
    assert summary["completions"] == 3 * 4 * 4
    assert [row["step"] for row in summary["eval"]] == [0, 3]
    for row in summary["eval"]:
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
    assert set(summary["spans"]) == {"rollout", "reward", "update", "record"}
    assert len(run.probes()) == 2 * 2
    assert summary["config"]["task"] == "arithmetic:easy"
    [group, *_] = run.groups(0)
    rewards = np.array([completion["reward"] for completion in group["completions"]])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4) if np.ptp(rewards) else np.zeros(4)
    np.testing.assert_allclose([completion["advantage"] for completion in group["completions"]], expected, rtol=1e-5)


def some(completions: list[str]) -> list[float | None]:
    return [1.0, 2.0, None, 4.0][: len(completions)]


def brief(completions: list[str]) -> list[float]:
    return [-float(len(text)) for text in completions]


def test_the_mean_of_every_reward_part_is_recorded(tmp_path: Path) -> None:
    run = grpo.train(small(tmp_path, steps=1), reward=[some, (brief, 0.5)])
    texts = [completion["text"] for group in run.groups(0) for completion in group["completions"]]
    [row] = run.metrics()
    assert row["part/some"] == pytest.approx((1 + 2 + 4) / 3)
    assert row["part/brief"] == pytest.approx(-np.mean([len(text) for text in texts]))  # before its weight


def test_groups_without_spread_leave_the_weights_exactly_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "constant", lambda _: Constant("easy"))
    config = small(tmp_path, task="constant", algorithm="dr_grpo", lr=0.1)
    run = grpo.train(config)
    before, after = load_policy("nano").model.state_dict(), weights(run)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row["updates"] for row in run.metrics()] == [0, 0, 0]
    assert [row["zero_signal_groups"] for row in run.metrics()] == [1, 1, 1]


def test_a_step_that_could_not_be_scored_at_all_has_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Speechless(Arithmetic):
        def score(self, problem: Problem, text: str) -> dict[str, float | None]:
            return {"correct": None} if problem.id.startswith("train/2/") else dict(super().score(problem, text))

    monkeypatch.setitem(TASKS, "speechless", lambda _: Speechless("easy"))
    run = grpo.train(small(tmp_path, task="speechless", algorithm="dr_grpo"), callbacks=[LinesView(quiet=False)])
    rows = run.metrics()
    assert [row["unscored"] for row in rows] == [0, 0, 1]
    assert rows[2]["reward_mean"] is rows[2]["reward_std"] is None
    assert [step for step, _ in run.series("reward_mean")] == [0, 1]
    assert run.summary()["reward_mean"] == rows[1]["reward_mean"]
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step   3/3")]
    assert "reward    –" in line


def test_momentum_moves_nothing_without_signal() -> None:
    policy = random_policy("llama")
    optimizer = make_optimizer(policy, Optimizer(weight_decay=0.1))
    config = Config(algorithm="dr_grpo", lr=0.01, optimizer=Optimizer(warmup_steps=0))
    update(policy, optimizer, random_groups(), config, step=0)  # now Adam has momentum
    before = [weight.clone() for weight in policy.model.parameters()]
    silent = [
        replace(g, completions=tuple(replace(c, advantages=np.zeros(len(c), np.float32)) for c in g.completions))
        for g in random_groups()
    ]
    assert update(policy, optimizer, silent, config, step=1)["updates"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_unscored_completions_change_nothing() -> None:
    """A completion without reward is left out of baseline, loss and denominator."""
    policy, config = random_policy("phi", torch.float64), Config(algorithm="dr_grpo")
    groups = [
        replace(g, completions=tuple(replace(c, reward=float(i % 2)) for i, c in enumerate(g.completions)))
        for g in random_groups()
    ]
    with_unscored = [replace(g, completions=(*g.completions, replace(g.completions[0], reward=None))) for g in groups]

    def gradient(of: list) -> torch.Tensor:
        [minibatch] = minibatches(credit(of, config)[0], config, step=0)
        accumulate_gradients(policy, minibatch, config)
        flat = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
        policy.model.zero_grad()
        return flat

    expected = gradient(groups)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(gradient(with_unscored), expected, rtol=1e-9, atol=1e-12)


def test_one_update_has_ratio_one_and_more_updates_move_away_from_it(tmp_path: Path) -> None:
    one = grpo.train(small(tmp_path, run="one")).metrics()
    assert all((row["ratio_min"], row["ratio_max"], row["updates"]) == (1, 1, 1) for row in one)
    several = Optimizer(epochs=2, minibatches=2, warmup_steps=0)
    four = grpo.train(small(tmp_path, run="four", optimizer=several, lr=1e-3)).metrics()
    assert all(row["updates"] == 4 for row in four)
    assert all(row["ratio_min"] < 1 < row["ratio_max"] for row in four)
    assert all(row["sampler_gap"] < 1e-4 for row in one + four)


def test_minibatches_hold_every_group_once_per_epoch_in_a_keyed_order() -> None:
    groups = random_groups(groups=7)
    config = Config(prompts_per_step=7, optimizer=Optimizer(epochs=2, minibatches=3))

    def order(step: int, seed: int = 1) -> list[list[str]]:
        return [[group.problem.id for group in part] for part in minibatches(groups, replace(config, seed=seed), step)]

    parts = order(0)
    assert [len(part) for part in parts] == [3, 2, 2] * 2
    for epoch in (parts[:3], parts[3:]):
        assert sorted(name for part in epoch for name in part) == [f"p{i}" for i in range(7)]
    assert order(0) == parts
    assert order(1) != parts
    assert order(0, seed=2) != parts


def test_old_logprobs_come_from_the_policy_before_the_first_update() -> None:
    policy = random_policy("phi")
    config = Config(algorithm="dr_grpo", optimizer=Optimizer(minibatches=2))
    groups = add_old_logprobs(random_groups(), policy, config)
    [batch] = grpo.model.packing.pack(contributing(groups, config), 10_000)
    expected, _ = grpo.model.policy.logprobs(policy, batch, 1.0)
    torch.testing.assert_close(batch.old_logp_NL, expected.detach(), atol=1e-5, rtol=1e-5)
    single = add_old_logprobs(random_groups(), policy, replace(config, optimizer=Optimizer()))
    assert all(done.old_logprobs is None for group in single for done in group.completions)


def test_no_reference_is_loaded_without_kl(tmp_path: Path) -> None:
    assert Session.start(small(tmp_path, algorithm="dr_grpo"), []).reference is None
    session = Session.start(small(tmp_path), [])
    assert session.reference is not None
    assert session.reference.model is not session.policy.model


def test_garbage_is_looked_for_among_new_objects_alone(tmp_path: Path) -> None:
    frozen: list[int] = []

    class Watch(Callback):
        def on_step(self, *_: object) -> None:
            frozen.append(gc.get_freeze_count())

    grpo.train(small(tmp_path), callbacks=[Watch()]).close()
    assert min(frozen) > 100_000
    assert gc.get_freeze_count() == 0


def test_kl_holds_the_policy_near_its_reference(tmp_path: Path) -> None:
    """With a heavy KL weight and no reward signal, a policy that starts elsewhere is pulled back."""
    policy, reference = random_policy("phi"), random_policy("phi", seed=1)
    config = Config(lr=0.003, optimizer=Optimizer(warmup_steps=0, grad_clip=100.0))
    config = replace(config, loss=replace(config.loss, beta=1.0))
    optimizer = make_optimizer(policy, Optimizer())
    silent = [
        replace(g, completions=tuple(replace(c, advantages=np.zeros(len(c), np.float32)) for c in g.completions))
        for g in random_groups(groups=8)
    ]
    groups = annotated(silent, policy, reference, config)
    divergence = [update(policy, optimizer, groups, config, step)["kl"] for step in range(20)]
    assert divergence[-1] < 0.5 * divergence[0]


def test_nano_discovers_that_working_pays(tmp_path: Path) -> None:
    config = small(
        tmp_path, steps=40, prompts_per_step=16, group_size=8, lr=3e-4, evaluation=Evaluation(every=0, problems=300)
    )
    before, after = grpo.train(config).evals()
    assert before["worked_share"] < 0.45
    assert after["worked_share"] > before["worked_share"] + 0.3
    assert after["low"] > before["high"]
    assert after["length_mean"] > before["length_mean"] + 3


class Warnings(Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_warning(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(("lr", "lora", "warned"), [(3e-4, 0, False), (1e-3, 4, False), (1.0, 0, True), (1e6, 4, True)])
def test_a_learning_rate_far_above_the_weights_is_told_before_and_found_after(
    tmp_path: Path, lr: float, lora: int, warned: bool
) -> None:
    heard = Warnings()
    config = small(tmp_path, lr=lr, lora={"rank": lora}, optimizer=Optimizer(warmup_steps=0))
    with grpo.train(config, callbacks=[heard]) as run:
        found = [row["kind"] for row in run.findings()]
    first = heard.texts[0] if heard.texts else ""
    assert first.startswith(f"lr {lr:g} is ") == warned
    assert ("diverged" in found or "nonfinite" in found) == warned
    if not warned:
        assert heard.texts == []


def test_a_typical_weight_is_the_root_mean_square_of_the_matrices() -> None:
    policy = random_policy("llama")
    with torch.no_grad():
        for name, weight in policy.trainable():
            weight.fill_(0.0 if "down_proj" in name else 0.3 if weight.ndim > 1 else 7.0)
    assert lr_warnings(policy, 0.03) == []
    [warning] = lr_warnings(policy, 0.06)
    assert warning.startswith("lr 0.06 is 0.2 times a typical weight, 0.3 (root mean square)")
