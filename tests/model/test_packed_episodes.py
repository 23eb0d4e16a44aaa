"""Packed episodes: log-probabilities, values and gradients are the stock model's on the whole sequence, with a loss on
sampled tokens only."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo.distributed.world import World
from grpo.model.packing import longest_row, pack
from grpo.model.policy import Policy, logprobs
from grpo.training.gradient import accumulate_gradients, share
from grpo.types import Completion, Group, Observation, Problem
from helpers.critics import critic_of
from helpers.groups import config_with, gradient, random_episodes, random_groups
from helpers.policies import random_adapter, random_policy


def episode(*observations: tuple[int, list[int]]) -> Group:
    seen = tuple(Observation(after, np.array(tokens, dtype=np.int64), "") for after, tokens in observations)
    logprobs, advantages = np.array([-1.0, -2.0, -3.0]), np.full(3, 0.5, np.float32)
    done = Completion("", np.array([1, 2, 3]), logprobs, "stop", observations=seen, advantages=advantages)
    return Group(Problem("p", "", ""), np.array([5, 6]), (done,), 0)


def test_an_episode_by_hand() -> None:
    """Prompt 5 6, then it samples 1 2, reads 8 9, and samples 3, which is predicted at the 9."""
    [batch] = pack([episode((2, [8, 9]), (3, []))], 100)
    assert batch.tokens_T.tolist() == [5, 6, 1, 2, 8, 9, 3]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert (batch.source_A.tolist(), batch.target_A.tolist()) == ([1, 2, 5], [1, 2, 3])
    assert batch.mask_NL.tolist() == [[True] * 3]
    assert batch.sampler_logp_NL.tolist() == [[-1.0, -2.0, -3.0]]
    assert batch.advantages_NL.tolist() == [[0.5] * 3]
    assert batch.layout.places_NE.tolist() == [[2, 3, 4, 5, 6]]
    # What it reads first is predicted by nobody, and predicts its first token.
    [batch] = pack([episode((0, [8, 9]), (3, [7]))], 100)
    assert batch.tokens_T.tolist() == [5, 6, 8, 9, 1, 2, 3, 7]
    assert (batch.source_A.tolist(), batch.target_A.tolist()) == ([3, 4, 5], [1, 2, 3])


def test_budgets_and_shares_count_what_was_read() -> None:
    """Packed together 2 + 5 tokens each; padded rows of 7."""
    group = episode((2, [8, 9]))
    twice = replace(group, completions=group.completions * 2)
    assert longest_row([group]) == 7
    assert [len(batch.tokens_T) for batch in pack([twice], 12)] == [12]
    assert [len(batch.tokens_T) for batch in pack([twice], 11)] == [7, 7]
    assert [len(batch.mask_NL) for batch in pack([twice], 14, padded=True)] == [2]
    assert [len(batch.mask_NL) for batch in pack([twice], 13, padded=True)] == [1, 1]
    # Of 25, 5 and 5 tokens, the second rank computes the two short ones.
    long, short = episode((2, [8] * 20)), episode()
    assert share([long, short, short], World(rank=0, size=2)) == [long]


def test_a_batch_without_observations_has_one_grid() -> None:
    [batch] = pack(random_groups(), 10_000)
    assert torch.equal(batch.layout.places_NE > 0, batch.mask_NL)


def test_another_rank_packs_the_same() -> None:
    """Ranks send each other groups pickled."""
    groups = random_episodes()
    [here], [there] = (pack(each, 10_000) for each in (groups, pickle.loads(pickle.dumps(groups, protocol=5))))
    for name in ("tokens_T", "positions_T", "source_A", "target_A", "mask_NL", "sampler_logp_NL"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name


def rows(groups: list[Group]) -> Iterator[tuple[Completion, torch.Tensor, torch.Tensor]]:
    """Each completion with its whole sequence, and the places in it that predict its sampled tokens."""
    for group in groups:
        for done in group.completions:
            sequence = np.concatenate([group.prompt_tokens, done.sequence])
            places = len(group.prompt_tokens) + np.flatnonzero(done.sampled)
            yield done, torch.from_numpy(sequence), torch.from_numpy(places - 1)


CASES = [
    ("phi", torch.float64, False, False),
    ("phi", torch.float64, False, True),
    ("phi", torch.float64, True, False),
    ("phi", torch.float64, True, True),
    ("gpt2", torch.float64, False, False),
    ("llama", torch.float32, False, False),
    ("llama", torch.float32, False, True),
    ("mistral-window", torch.float32, False, False),
    ("bloom", torch.float32, True, False),
    ("gemma2", torch.float32, True, False),
]
"""Architecture, precision, whether it runs padded rows, and whether only an adapter is trained. Only phi and gpt2 have
norms that compute in float64."""


@pytest.mark.parametrize(("name", "dtype", "padded", "lora"), CASES)
def test_equal_the_stock_models(name: str, dtype: torch.dtype, padded: bool, lora: bool) -> None:
    if lora:
        pytest.importorskip("peft")
    ours, stock = (random_adapter(name, dtype) if lora else random_policy(name, dtype) for _ in range(2))
    ours.padded = padded
    for policy in (ours, stock) if padded else (stock,):
        run_stock_attention(policy)
    bound = 1e-9 if dtype == torch.float64 else 1e-5
    groups, config = random_episodes(), config_with(60, "grpo", beta=0.0)
    found = [logp for batch in pack(groups, 60, padded=padded) for logp in measured(ours, batch)]
    completions = list(rows(groups))
    for (done, sequence, places), logp_L in zip(completions, found, strict=True):
        logp_LV = torch.log_softmax(stock.model(sequence[None]).logits[0, places], dim=-1)
        expected_L = logp_LV.gather(1, sequence[places + 1, None])[:, 0]
        assert (logp_L - expected_L.detach()).abs().max() < bound
        advantage = float(done.advantages[0])
        (-(advantage * expected_L).mean() / len(completions)).backward()  # ρ = 1: the gradient of ρA is A∇logp
    accumulate_gradients(ours, groups, config)
    grads = ([weight.grad for _, weight in policy.trainable()] for policy in (ours, stock))
    ours_flat, theirs = (torch.cat([grad.flatten() for grad in each if grad is not None]) for each in grads)
    assert theirs.norm() > 0.01
    assert (ours_flat - theirs).norm() / theirs.norm() < bound


def run_stock_attention(policy: Policy) -> None:
    """In the model's precision: sdpa, except where a model caps its scores or adds slopes to them."""
    policy.model.config._attn_implementation = "eager" if policy.name in ("bloom", "gemma2") else "sdpa"


def measured(policy: Policy, batch: object) -> list[torch.Tensor]:
    """The log-probabilities of each completion's sampled tokens."""
    with torch.no_grad():
        logp_NL, _ = logprobs(policy, batch, 1.0)
    return [row[mask] for row, mask in zip(logp_NL, batch.mask_NL, strict=True)]


@pytest.mark.parametrize("padded", [False, True])
def test_a_critics_values_and_gradient_equal_the_stock_models(padded: bool) -> None:
    """The value before each sampled token; its error has a gradient at sampled tokens only."""
    bodies = [random_policy("phi", torch.float64) for _ in range(2)]
    bodies[0].padded = padded
    for body in bodies if padded else bodies[1:]:
        run_stock_attention(body)
    ours, stock = (critic_of(body, shared=False) for body in bodies)
    rng = np.random.default_rng(0)
    groups = [
        replace(
            group,
            completions=tuple(
                replace(done, values=np.zeros(len(done)), returns=rng.normal(size=len(done)).astype(np.float32))
                for done in group.completions
            ),
        )
        for group in random_episodes()
    ]
    [batch] = pack(groups, 10_000)
    values_NL = ours.values(batch)
    ours.loss(batch, None, tokens=1, clip=0.0).backward()
    for row, (done, sequence, places) in enumerate(rows(groups)):
        hidden = stock.body.model.base_model(sequence[None]).last_hidden_state[0, places]
        values_L = stock.head(hidden)[:, 0]
        assert (values_NL[row, : len(done)] - values_L).abs().max() < 1e-9
        (0.5 * (values_L - torch.from_numpy(done.returns)) ** 2).sum().backward()
    for (name, ours_weight), (_, weight) in zip(ours.named_parameters(), stock.named_parameters(), strict=True):
        assert weight.grad is not None, name
        assert (ours_weight.grad - weight.grad).norm() <= 1e-9 * max(1.0, float(weight.grad.norm())), name


@pytest.mark.parametrize("budget", [60, 20, 1])
def test_no_split_changes_the_gradient_of_episodes(budget: int) -> None:
    policy, groups = random_policy("phi", torch.float64), random_episodes()
    expected = gradient(policy, groups, config_with(10_000, "dr_grpo"))
    found = gradient(policy, groups, config_with(budget, "dr_grpo"))
    assert (found - expected).norm() / expected.norm() < 1e-9
