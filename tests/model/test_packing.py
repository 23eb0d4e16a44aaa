"""Packing: the shared-prompt forward against one padded sequence at a time, and gradients under any split."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo.model.packing import pack
from grpo.model.policy import logprobs
from grpo.training.loop import accumulate_gradients
from grpo.types import Completion, Group, Problem
from helpers.groups import annotated, config_with, gradient, random_groups
from helpers.policies import random_policy


def test_packed_forward_equals_one_sequence_at_a_time(architecture: str) -> None:
    packed, stock = random_policy(architecture), random_policy(architecture, attention="eager").model
    groups = random_groups()
    [batch] = pack(groups, token_budget=10_000)
    logp_NL, entropy_NL = logprobs(packed, batch, temperature=0.8)
    row = 0
    for group in groups:
        for completion in group.completions:
            sequence = torch.from_numpy(np.concatenate([group.prompt_tokens, completion.tokens]))
            start = len(group.prompt_tokens)
            logp_LV = torch.log_softmax(stock(sequence[None]).logits[0, start - 1 : -1].float() / 0.8, dim=-1)
            expected_L = logp_LV[torch.arange(len(completion)), sequence[start:]]
            length = len(completion)
            torch.testing.assert_close(logp_NL[row, :length], expected_L, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(
                entropy_NL[row, :length], -(logp_LV.exp() * logp_LV).sum(-1), atol=2e-5, rtol=1e-4
            )
            assert (logp_NL[row, length:] == 0).all()
            row += 1


def test_each_prompt_token_is_computed_once_per_group() -> None:
    policy, groups = random_policy("llama"), random_groups()
    seen: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: seen.append(inputs[0].numel())
    )
    # With an entropy bonus every completion has a gradient.
    accumulate_gradients(policy, groups, config_with(10_000, "dr_grpo", entropy=0.01))
    hook.remove()
    prompts = sum(len(group.prompt_tokens) for group in groups)
    completions = sum(len(completion) for group in groups for completion in group.completions)
    assert seen == [prompts + completions]


def test_a_group_larger_than_the_budget_splits_and_only_then_repeats_its_prompt() -> None:
    prompt = np.array([5, 6, 7])
    completion = Completion("", np.array([8, 9]), np.zeros(2), "stop")
    group = Group(Problem("p", "", ""), prompt, (completion,) * 4, 0)
    # 3 + 4·2 = 11 tokens fit one budget of 11; a budget of 8 takes prompt + 2 completions each time.
    assert [batch.tokens_T.tolist() for batch in pack([group], 11)] == [[5, 6, 7, *[8, 9] * 4]]
    assert [batch.tokens_T.tolist() for batch in pack([group], 8)] == [[5, 6, 7, 8, 9, 8, 9]] * 2
    # A single completion that exceeds the budget stands alone instead of being lost.
    assert [batch.tokens_T.tolist() for batch in pack([group], 4)] == [[5, 6, 7, 8, 9]] * 4
    # Two groups of 11 in a budget of 22 share one row.
    assert [len(batch.tokens_T) for batch in pack([group, group], 22)] == [22]


def test_the_budget_of_a_padded_model_counts_padding_and_a_prompt_per_completion() -> None:
    def group(prompt: int, *lengths: int) -> Group:
        completions = tuple(Completion("", np.ones(n, dtype=np.int64), np.zeros(n), "stop") for n in lengths)
        return Group(Problem("p", "", ""), np.ones(prompt, dtype=np.int64), completions, 0)

    def lengths(groups: list[Group], budget: int) -> list[list[int]]:
        return [batch.mask_NL.sum(dim=1).tolist() for batch in pack(groups, budget, padded=True)]

    # Packed 3 + 2 + 2 + 4 = 11 tokens; padded 3 rows of 3 + 4 = 21.
    mixed = group(3, 2, 2, 4)
    assert lengths([mixed], 21) == [[2, 2, 4]]
    # In a budget of 20: rows of 3 + 2, until one of 3 + 4 would make 3 rows of 7.
    assert lengths([mixed], 20) == [[2, 2], [4]]
    assert lengths([mixed], 1) == [[2], [2], [4]]
    # Another group's longer prompt pads all rows: 4 rows of 5 + 2 = 28.
    assert lengths([group(3, 2, 2), group(5, 1, 1)], 28) == [[2, 2, 1, 1]]
    assert lengths([group(3, 2, 2), group(5, 1, 1)], 27) == [[2, 2], [1, 1]]


def test_a_padded_model_computes_no_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, groups = random_policy("phi", attention="sdpa"), random_groups()
    policy.padded = True
    computed: list[int] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: computed.append(inputs[0].numel())
    )
    accumulate_gradients(policy, groups, config_with(120, "dr_grpo", entropy=0.01))
    hook.remove()
    assert len(computed) > 1
    assert max(computed) <= 120


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs", "advantages", "values"])
def test_values_that_only_some_completions_have_are_refused(field: str) -> None:
    with_it, without = (
        Completion("", np.array([8, 9]), np.zeros(2), "stop", **more) for more in ({field: np.ones(2)}, {})
    )
    group = Group(Problem("p", "", ""), np.array([5, 6]), (with_it, without), 0)
    with pytest.raises(AssertionError, match=f"^{field}: 1 of 2 completions have it"):
        pack([group], 100)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])
@pytest.mark.parametrize(
    "loss", [{}, {"aggregate": "token"}, {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_split_or_packing_changes_the_gradient(algorithm: str, loss: dict[str, object], dtype: torch.dtype) -> None:
    # Phi, because its layer norm computes in the model's own precision; the others' drops to float32.
    policy, reference = random_policy("phi", dtype), random_policy("phi", dtype, seed=1)
    whole = config_with(10_000, algorithm, **loss)
    groups = annotated(random_groups(), policy, reference if whole.loss.beta else None, whole)
    expected = gradient(policy, groups, whole)
    assert expected.norm() > 0.01
    for budget in (200, 60, 20, 1):
        split = gradient(policy, groups, config_with(budget, algorithm, **loss))
        difference = (split - expected).norm() / expected.norm()
        assert difference <= (1e-9 if dtype == torch.float64 else 1e-5)


def test_gradient_equals_the_padded_one() -> None:
    """The same loss through stock attention, one completion at a time, in float64."""
    packed, stock = random_policy("phi", torch.float64), random_policy("phi", torch.float64, attention="sdpa")
    groups, config = random_groups(), config_with(10_000, "grpo", beta=0.0)
    ours = gradient(packed, groups, config)
    completions = [(group, completion) for group in groups for completion in group.completions]
    for group, completion in completions:
        sequence = torch.from_numpy(np.concatenate([group.prompt_tokens, completion.tokens]))
        start = len(group.prompt_tokens)
        logp_LV = torch.log_softmax(stock.model(sequence[None]).logits[0, start - 1 : -1], dim=-1)
        logp_L = logp_LV[torch.arange(len(completion)), sequence[start:]]
        advantage = float(completion.advantages[0])
        (-(advantage * logp_L).mean() / len(completions)).backward()  # ρ = 1: the gradient of ρA is A∇logp
    theirs = torch.cat([weight.grad.flatten() for weight in stock.model.parameters()])
    assert (ours - theirs).norm() / theirs.norm() < 1e-9
