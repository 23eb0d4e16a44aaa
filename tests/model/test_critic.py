"""The critic: values at the right places, gradients into the right weights, warm-up, and coming back from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import grpo
from grpo.config import Config, Critic, Evaluation, Optimizer, System
from grpo.model.critic import make_critic
from grpo.model.load import load_policy
from grpo.model.optimizer import make_optimizer
from grpo.model.packing import pack
from grpo.model.policy import Policy
from grpo.training.credit import credit
from grpo.training.gradient import accumulate_gradients
from grpo.training.loop import update
from helpers.critics import critic_of, ppo, rewarded
from helpers.groups import annotated, random_groups
from helpers.policies import random_policy


def flat(weights) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in weights])


def test_a_value_is_read_where_its_token_is_predicted() -> None:
    """Against stock attention, one sequence at a time: the state before a token speaks for it."""
    groups = random_groups()
    critic = critic_of(random_policy("llama"), shared=False)
    stock = random_policy("llama", attention="eager").model.base_model
    [batch] = pack(groups, token_budget=10_000)
    values_NL = critic.values(batch)
    row = 0
    for group in groups:
        for completion in group.completions:
            sequence = torch.from_numpy(np.concatenate([group.prompt_tokens, completion.tokens]))
            start = len(group.prompt_tokens)
            hidden = stock(sequence[None]).last_hidden_state[0, start - 1 : -1]
            torch.testing.assert_close(
                values_NL[row, : len(completion)], critic.head(hidden)[:, 0], atol=2e-5, rtol=1e-4
            )
            assert (values_NL[row, len(completion) :] == 0).all()
            row += 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("budget", [60, 20])
def test_no_split_changes_the_gradients(shared: bool, budget: int) -> None:
    def gradients(token_budget: int) -> torch.Tensor:
        policy = random_policy("phi", torch.float64)
        critic = critic_of(policy if shared else random_policy("phi", torch.float64, seed=1), shared=shared)
        config = ppo(system=System(token_budget=token_budget))
        groups = annotated(rewarded(random_groups()), policy, None, config, critic)
        groups, _ = credit(groups, config)
        accumulate_gradients(policy, groups, config, critic)
        weights = [*policy.model.parameters(), *(weight for _, weight in critic.named_parameters())]
        return torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])

    whole, split = gradients(10_000), gradients(budget)
    assert whole.norm() > 0.01
    assert (split - whole).norm() / whole.norm() < 1e-9


@pytest.mark.parametrize("shared", [False, True])
def test_its_clip_holds_back_values_that_moved_far(shared: bool) -> None:
    """Values from before an update lie far away, on the side of the returns: with a clip nothing pulls any further."""

    def norm(clip: float) -> float:
        policy = random_policy("phi")
        critic = critic_of(policy if shared else random_policy("phi", seed=1), shared=shared)
        config = ppo(critic=Critic(warmup_steps=0, clip=clip))
        groups = credit(annotated(rewarded(random_groups()), policy, None, config, critic), config)[0]
        # As if the values had been 50 lower before: every return is ahead of where the clip lets them go.
        moved = [
            replace(
                g, completions=tuple(replace(c, values=c.values - 50, returns=c.returns + 50) for c in g.completions)
            )
            for g in groups
        ]
        accumulate_gradients(policy, moved, config, critic)
        return float(critic.head.weight.grad.norm())

    assert norm(0.2) == 0.0
    assert norm(0.0) > 1.0


def test_a_shared_critic_moves_the_network_and_a_separate_one_does_not() -> None:
    groups = rewarded(random_groups())

    def gradient(shared: bool, weight: float) -> torch.Tensor:
        policy = random_policy("phi")
        critic = critic_of(policy if shared else random_policy("phi", seed=1), shared=shared)
        config = ppo(critic=Critic(warmup_steps=0, weight=weight))
        fixed = annotated(groups, policy, None, config, critic_of(random_policy("phi", seed=1), shared=False))
        accumulate_gradients(policy, credit(fixed, config)[0], config, critic)
        return torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])

    alone = gradient(shared=False, weight=0.5)
    torch.testing.assert_close(gradient(shared=True, weight=0.0), alone)
    torch.testing.assert_close(gradient(shared=False, weight=9.0), alone)
    once, twice = (gradient(shared=True, weight=weight) - alone for weight in (0.5, 1.0))
    assert once.norm() > 0.01
    torch.testing.assert_close(twice, 2 * once, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("warming_up", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_stretched_loss_leaves_both_the_very_same_gradients(
    shared: bool, warming_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients() -> list[torch.Tensor]:
        policy = random_policy("phi")
        critic = critic_of(policy if shared else random_policy("phi", seed=1), shared=shared)
        groups = credit(annotated(rewarded(random_groups()), policy, None, config, critic), config)[0]
        accumulate_gradients(policy, groups, config, critic, warming_up)
        weights = [*policy.model.parameters(), *(weight for _, weight in critic.named_parameters())]
        return [weight.grad for weight in weights if weight.grad is not None]

    config = ppo()
    expected = gradients()
    assert expected
    monkeypatch.setattr(Policy, "loss_scale", lambda *_: 4096.0)
    found = gradients()
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("shared", [False, True])
def test_while_the_critic_warms_up_only_it_learns(shared: bool) -> None:
    policy = random_policy("phi")
    critic = critic_of(policy if shared else random_policy("phi", seed=1), shared=shared)
    optimizer = make_optimizer(policy, Optimizer())
    config = ppo(critic=Critic(warmup_steps=2, lr=0.01), lr=0.01)
    errors = []
    before, head = flat(policy.model.parameters()), flat(critic.head.parameters())
    for step in range(2):
        groups = credit(annotated(rewarded(random_groups()), policy, None, config, critic), config)[0]
        metrics = update(policy, optimizer, groups, config, step, critic)
        errors.append(metrics["value_loss"])
        assert metrics["updates"] == 0
        assert "grad_norm" not in metrics
        assert policy.version == 0
        assert flat(policy.model.parameters()).equal(before)
    assert not flat(critic.head.parameters()).equal(head)
    assert errors[1] < errors[0]
    groups = credit(annotated(rewarded(random_groups()), policy, None, config, critic), config)[0]
    assert update(policy, optimizer, groups, config, 2, critic)["updates"] == 1
    assert not flat(policy.model.parameters()).equal(before)


@pytest.mark.parametrize(("shared", "least"), [(False, 0.7), (True, 0.3)])
def test_it_learns_what_to_expect(shared: bool, least: float) -> None:
    """The same completions again and again: in the end it knows much of the reward of each."""
    policy = random_policy("phi")
    critic = critic_of(policy if shared else random_policy("phi", seed=1), shared=shared)
    config = ppo(critic=Critic(warmup_steps=100, lr=0.03 if shared else 0.003, clip=0.0))
    optimizer = make_optimizer(policy, Optimizer())
    for step in range(60):
        groups, metrics = credit(annotated(rewarded(random_groups()), policy, None, config, critic), config)
        if step == 0:
            first = metrics["explained_variance"]
        update(policy, optimizer, groups, config, step, critic)
    assert first < 0.2
    assert metrics["explained_variance"] > least


@pytest.mark.parametrize("model", ["separate", "shared"])
def test_a_new_critic_expects_nothing_and_comes_back_bit_for_bit(model: str) -> None:
    config = Config(model="nano", algorithm="ppo", critic=Critic(model=model))
    policy = load_policy("nano")
    critic = make_critic(config, policy)
    weights = [weight for _, weight in critic.named_parameters()]
    assert flat(critic.head.parameters()).abs().sum() == 0
    assert (critic.body is policy) == (model == "shared")
    assert len(weights) == 2 if model == "shared" else len(weights) > 10
    torch.manual_seed(0)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    critic.optimizer.descend(lr=0.01, grad_clip=1.0)
    kept = {name: tensor.clone() for name, tensor in critic.tensors()}
    again = make_critic(config, load_policy("nano"))
    again.restore(kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in again.tensors())
    for other in (critic, again):
        for _, weight in other.named_parameters():
            weight.grad = torch.ones_like(weight)
        other.optimizer.descend(lr=0.01, grad_clip=1.0)
    assert flat(w for _, w in critic.named_parameters()).equal(flat(w for _, w in again.named_parameters()))


def test_a_gradient_that_is_not_finite_leaves_the_critic_alone() -> None:
    critic = critic_of(random_policy("phi"), shared=False)
    before = flat(weight for _, weight in critic.named_parameters())
    for _, weight in critic.named_parameters():
        weight.grad = torch.full_like(weight, float("nan"))
    assert not np.isfinite(critic.optimizer.descend(lr=0.1, grad_clip=1.0))
    assert flat(weight for _, weight in critic.named_parameters()).equal(before)


def test_only_ppo_pays_for_a_critic(tmp_path: Path) -> None:
    settings = {
        "model": "nano",
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 32,
        "evaluation": Evaluation(every=0, problems=4, probes=0),
        "system": System(runs=str(tmp_path), threads=1),
    }
    for algorithm, model, files in (
        ("grpo", "separate", []),
        ("ppo", "separate", ["critic.safetensors"]),
        ("ppo", "shared", ["critic.safetensors"]),
    ):
        run = grpo.train(Config(algorithm=algorithm, critic=Critic(model=model, warmup_steps=0), **settings))
        folder = run.path / "checkpoints" / "step-000002"
        assert [path.name for path in folder.glob("critic*")] == files
        assert ("value_loss" in run.metrics()[-1]) == (algorithm == "ppo")
        sizes = [(folder / name).stat().st_size for name in files]
        if model == "shared":
            assert sizes[0] < 10_000
