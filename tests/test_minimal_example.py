"""examples/grpo_minimal.py: short, independent of the package, and the same gradient as the trainer's."""

import ast
import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import grpo
from grpo.config import Config, System
from grpo.config.presets import PRESETS
from grpo.model.attention import NAME as ATTENTION
from grpo.model.policy import Policy, logprobs
from grpo.training.annotations import annotate
from grpo.training.loop import accumulate_gradients, credit
from grpo.types import Completion, Group, Problem

EXAMPLE = Path(__file__).parents[1] / "examples/grpo_minimal.py"
NANO = Path(grpo.__file__).parent / "model/hub/nano"
CHARACTERS = "0123456789+*=(),;"
PAD, END = len(CHARACTERS), len(CHARACTERS) + 1


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_minimal", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_llama(seed: int, attention: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
        attn_implementation=attention,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        # The usual initial weights are so small that every token is about as likely as any other.
        for weight in model.parameters():
            weight.mul_(4.0 if weight.ndim > 1 else 1.0)
    return model


def sampled_groups(rewards: list[list[float]]) -> list[Group]:
    """Random prompts and completions of different lengths, with the rewards given."""
    rng = np.random.default_rng(0)
    groups = []
    for p, group_rewards in enumerate(rewards):
        completions = []
        for reward in group_rewards:
            tokens = np.append(rng.integers(0, PAD, size=rng.integers(1, 9)), END)
            completions.append(Completion("", tokens, np.zeros(len(tokens)), "stop", reward=reward))
        prompt = rng.integers(0, PAD, size=3 + 4 * p)
        groups.append(Group(Problem(str(p), "", ""), prompt, tuple(completions), policy_version=0))
    return groups


def flat_gradient(model: LlamaForCausalLM) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("token_budget", [10_000, 40])
def test_one_step_has_the_trainers_gradient(example, attention, token_budget):
    """Padded rows and repeated prompts there, packed groups here, in float64: one gradient."""
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.2, 1.0, 0.9, 0.4]]
    groups = sampled_groups(rewards)

    theirs, reference = small_llama(1, attention), small_llama(2, attention)
    losses = [
        example.grpo_loss(
            theirs,
            reference,
            group.prompt_tokens.tolist(),
            [completion.tokens.tolist() for completion in group.completions],
            torch.tensor(group_rewards, dtype=torch.float64),
            beta=0.04,
            clip=0.2,
        )
        for group, group_rewards in zip(groups, rewards, strict=True)
    ]
    loss = torch.stack(losses).mean()
    loss.backward()

    policy, reference = (Policy(small_llama(seed, ATTENTION), None, "small", frozenset([END])) for seed in (1, 2))
    settings = PRESETS["grpo"].settings
    assert (settings.beta, settings.clip_low, settings.clip_high) == (0.04, 0.2, 0.2)
    config = Config(loss=settings, temperature=1.0, system=System(token_budget=token_budget))
    groups = annotate(
        groups,
        lambda batch: logprobs(reference, batch, 1.0)[0],
        "ref_logprobs",
        token_budget=token_budget,
        policy=policy,
    )
    groups, _ = credit(groups, config)
    statistics = accumulate_gradients(policy, groups, config).statistics

    assert float(statistics.loss) == pytest.approx(loss.item(), rel=1e-6)
    expected, found = flat_gradient(theirs), flat_gradient(policy.model)
    assert expected.norm() > 0.1
    assert ((found - expected).norm() / expected.norm()).item() < 1e-6


def test_equal_rewards_leave_only_the_kl(example):
    """Rewards all equal: advantages are exactly 0, and what is left of the loss is β·KL."""
    model, reference = small_llama(1, "sdpa"), small_llama(2, "sdpa")
    arguments = (model, reference, [1, 2, 3], [[4, 5, END], [6, END]], torch.tensor([0.1, 0.1]))
    assert example.grpo_loss(*arguments, beta=0.0, clip=0.2).item() == 0.0
    twice = example.grpo_loss(*arguments, beta=0.08, clip=0.2).item()
    assert twice == pytest.approx(2 * example.grpo_loss(*arguments, beta=0.04, clip=0.2).item(), rel=1e-12)
    assert twice > 0


def test_the_reward_reads_what_follows_the_work(example):
    assert example.reward("(7,12,18,20;2,5,13,17,26)260", "260") == 1.0
    assert example.reward("260", "260") == 1.0
    assert example.reward("(260)26", "260") == 0.0


def test_the_reward_rises(monkeypatch, capsys):
    """The first 16 of its 60 steps on the embedded model `nano`."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(NANO), "16"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rewards = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines()]
    assert len(rewards) == 16
    assert 0.2 < sum(rewards[:4]) / 4 < 0.6
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.15


def test_it_is_short_and_stands_alone():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 60
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"sys", "torch", "transformers"}
