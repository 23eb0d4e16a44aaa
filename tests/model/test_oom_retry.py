"""Running out of memory costs time, never a step: micro-batches are halved and the gradient is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import grpo
from grpo.config import Checkpoints, Config, Evaluation, System
from grpo.errors import GrpoError
from grpo.model.oom_retry import MIN_TOKENS, within_memory
from grpo.model.packing import longest_row, pack
from grpo.model.policy import Policy, predicting_states
from grpo.record.store import Run
from grpo.record.trace import Traces
from grpo.training.credit import credit
from grpo.training.loop import accumulate_gradients
from grpo.types import Batch
from helpers.critics import critic_of, ppo, rewarded
from helpers.groups import annotated, random_groups
from helpers.policies import random_policy


def too_small_for(most: int):
    """`predicting_states` on a GPU whose memory holds so many tokens."""

    def states(policy: Policy, batch: Batch) -> torch.Tensor:
        hidden_AC = predicting_states(policy, batch)
        if len(batch.tokens_T) > most:
            raise torch.OutOfMemoryError(f"{len(batch.tokens_T)} tokens")
        return hidden_AC

    return states


def test_it_halves_until_it_fits_and_undoes_in_between() -> None:
    policy, tried, undone = random_policy("llama"), [], []

    def work(tokens: int) -> str:
        tried.append(tokens)
        if tokens > 3000:
            raise torch.OutOfMemoryError
        return "done"

    assert within_memory(policy, 10_000, work, lambda: undone.append(tried[-1])) == "done"
    assert tried == [10_000, 5_000, 2_500]
    assert undone == [10_000, 5_000]
    assert policy.token_budget == 2_500, "and stays so"


def test_it_gives_up_with_one_line() -> None:
    def work(tokens: int) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(
        GrpoError, match=rf"^field system.token_budget: out of memory on cpu even with {MIN_TOKENS} tokens"
    ):
        within_memory(random_policy("llama"), 3 * MIN_TOKENS, work)


def test_a_completion_that_is_alone_is_tried_once_more() -> None:
    """Of 20,000 tokens: a budget of 32,768 may hold more beside it, those of 16,384 and 8,192 hold it alone."""
    tried: list[int] = []

    def work(tokens: int) -> None:
        tried.append(tokens)
        raise torch.OutOfMemoryError

    with pytest.raises(GrpoError, match="on cpu even with one completion of 20000 tokens with its prompt per micro"):
        within_memory(random_policy("llama"), 32_768, work, longest=20_000)
    assert tried == [32_768, 16_384, 8_192]
    groups = random_groups()
    batches = pack(groups, 1)
    assert max(len(batch.tokens_T) for batch in batches) == longest_row(groups)
    assert longest_row([]) == 0


def test_the_gradient_is_the_one_of_a_large_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.model.oom_retry.MIN_TOKENS", 8)
    groups, gradients = random_groups(), []
    for most in (10_000, 40):
        policy = random_policy("llama", torch.float64)
        monkeypatch.setattr("grpo.training.gradient.predicting_states", too_small_for(most))
        accumulate_gradients(policy, groups, Config(algorithm="dr_grpo", max_new_tokens=12))
        gradients.append(torch.cat([weight.grad.flatten() for weight in policy.model.parameters()]))
    assert policy.token_budget == 32, "16384, halved until no micro-batch has more than 40"
    assert (gradients[0] - gradients[1]).norm() < 1e-7 * gradients[0].norm()


@pytest.mark.parametrize("shared", [False, True])
def test_a_critic_and_traces_see_every_token_once_all_the_same(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done before memory ran out leaves nothing behind: in the critic, the policy, or what is recorded."""
    monkeypatch.setattr("grpo.model.oom_retry.MIN_TOKENS", 8)
    found = []
    for most in (10_000, 40):
        policy = random_policy("llama", torch.float64)
        critic = critic_of(policy if shared else random_policy("llama", torch.float64, seed=1), shared=shared)
        groups = annotated(rewarded(random_groups()), policy, None, ppo(), critic)
        groups, _ = credit(groups, ppo())
        traces = Traces(groups, len(groups))
        monkeypatch.setattr("grpo.training.gradient.predicting_states", too_small_for(most))
        gradient = accumulate_gradients(policy, groups, ppo(), critic, traces=traces)
        grads = [weight.grad for weight in (*policy.model.parameters(), *dict(critic.named_parameters()).values())]
        seen = [traces.collected[done].logprobs for group in groups for done in group.completions]
        found.append((torch.cat([grad.flatten() for grad in grads]), np.concatenate(seen), gradient))
    (whole, logp, told), (halved, logp_again, told_again) = found
    assert policy.token_budget < 16384
    assert (whole - halved).norm() < 1e-7 * whole.norm()
    np.testing.assert_allclose(logp_again, logp, rtol=0, atol=1e-9)
    assert told_again.value_loss == pytest.approx(told.value_loss)
    assert told_again.metrics() == pytest.approx(told.metrics())


def test_a_run_keeps_and_tells_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.gradient.predicting_states", too_small_for(100))
    monkeypatch.setattr("grpo.model.oom_retry.MIN_TOKENS", 8)
    settings = {
        "model": "nano",
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 16,
        "evaluation": Evaluation(every=0, problems=4, probes=0),
    }
    with grpo.train(Config(**settings, run="small", system=System(runs=str(tmp_path)))) as run:
        [kept] = run.meta("token_budgets")
        told = [finding["text"] for finding in run.findings() if finding["kind"] == "memory"]
    assert kept < 16384
    assert told == [f"step 0: out of memory; micro-batches now hold {kept} tokens"]
    monkeypatch.undo()
    monkeypatch.setattr("grpo.model.oom_retry.MIN_TOKENS", 8)
    more = settings | {"steps": 3, "resume": True}
    with grpo.train(Config(**more, run="small", system=System(runs=str(tmp_path)))) as run:
        assert isinstance(run, Run)
        assert run.meta("token_budgets") == [kept]
    asked = more | {"steps": 4, "checkpoints": Checkpoints(allow_change=True)}
    with grpo.train(Config(**asked, run="small", system=System(runs=str(tmp_path), token_budget=4096))) as run:
        assert run.meta("token_budgets") == [4096], "asked for anew"
        assert not [found for found in run.findings() if found["kind"] == "memory" and "4096" in found["text"]]
