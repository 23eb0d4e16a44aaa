"""The engine against transformers' own generation, and against the trainer."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper

from grpo.errors import GrpoError
from grpo.model.packing import pack, pack_prompts
from grpo.model.plan.work import Work
from grpo.model.policy import Policy, logprobs
from grpo.rollout.builtin import Engine
from grpo.rollout.cpu.kv_cache import PromptCache
from grpo.rollout.cpu.linear import Block, reordered_weights
from grpo.rollout.expected import expect
from grpo.rollout.noise import sampling_noise
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.rollout.schedule import Room
from grpo.training.sft import answered
from grpo.types import Completion, Problem
from helpers.policies import CharacterTokenizer, random_policy

PROBLEMS = [Problem("a", "hello", ""), Problem("b", "a longer prompt", ""), Problem("c", "hi", "")]


def sample(policy: Policy, problems: list[Problem] = PROBLEMS, group_size: int = 4, **options: object):
    settings = {"seed": 0, "step": 0, "temperature": 1.0, "max_new_tokens": 16} | options
    return Engine(policy).sample(problems, group_size, Sampling(**settings))


def test_greedy_tokens_equal_generate(architecture: str) -> None:
    groups = sample(random_policy(architecture), group_size=1, temperature=0.0)
    stock = random_policy(architecture, attention="eager").model
    for group in groups:
        prompt = torch.tensor(group.prompt_tokens)[None]
        expected = stock.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=1,
            pad_token_id=0,
        )
        assert group.completions[0].tokens.tolist() == expected[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_agree(architecture: str, temperature: float) -> None:
    policy = random_policy(architecture)
    groups = sample(policy, temperature=temperature)
    lengths = {len(completion) for group in groups for completion in group.completions}
    assert len(lengths) > 1, "completions of one length would not test dropping"
    for batch in pack(groups, token_budget=60):
        logp_NL, _ = logprobs(policy, batch, temperature)
        gap = (logp_NL - batch.sampler_logp_NL)[batch.mask_NL].abs()
        assert gap.max() < 1e-4


def test_same_completions_in_any_company() -> None:
    policy = random_policy("llama", torch.float64)
    together = sample(policy)
    for i, problem in enumerate(PROBLEMS):
        [alone] = sample(policy, [problem], group_size=2)
        for a, b in zip(alone.completions, together[i].completions, strict=False):
            assert a.tokens.tolist() == b.tokens.tolist()
            # Norms compute in float32 inside the model, so the last digits depend on the shapes.
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_coordinates_key_the_noise() -> None:
    policy = random_policy("llama")
    texts = lambda **options: [c.text for group in sample(policy, **options) for c in group.completions]  # noqa: E731
    assert texts() == texts()
    assert texts() != texts(seed=1)
    assert texts() != texts(step=1)
    assert texts() != texts(purpose="eval")
    siblings = texts()[:4]
    assert len(set(siblings)) > 1


def test_noise_is_uniform_and_independent_across_coordinates() -> None:
    uniforms = sampling_noise(7, "train", 3, [f"p{i}" for i in range(50)], 20, 40).reshape(-1).numpy()
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    # 40,000 uniforms: mean 1/2 with standard error 0.0014, and 4,000 ± 60 in each tenth.
    assert abs(uniforms.mean() - 0.5) < 0.006
    counts, _ = np.histogram(uniforms, bins=10, range=(0, 1))
    assert np.abs(counts - 4000).max() < 300
    assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.02
    assert len(np.unique(uniforms)) > 39_900


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    uniforms = sampling_noise(0, "train", 0, ["p"], 1, 20_000).reshape(-1)
    tokens, logp = sample_token(logits.expand(20_000, 4), uniforms, temperature=2.0)
    expected = torch.softmax(logits[0] / 2.0, dim=0)
    shares = torch.bincount(tokens, minlength=4) / 20_000
    assert (shares - expected).abs().max() < 0.015  # four standard errors
    torch.testing.assert_close(logp, expected.log()[tokens])


@pytest.mark.parametrize("vocabulary", [49_152, 7_777])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_large_vocabulary_is_searched_chunk_by_chunk(vocabulary: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_NV = 3 * torch.randn(200, vocabulary, generator=generator)
    uniform_N = torch.rand(200, generator=generator)
    uniform_N[:2] = torch.tensor([0.0, 1 - 2.0**-24])
    token_N, logp_N = sample_token(logits_NV, uniform_N, temperature)

    plain_NV = torch.log_softmax(logits_NV.double() / temperature, dim=-1)
    end_NV = plain_NV.exp().cumsum(dim=-1)
    end_N = end_NV.gather(1, token_N[:, None])[:, 0]
    start_N = end_N - plain_NV.exp().gather(1, token_N[:, None])[:, 0]
    # Its stretch of the running sum holds the uniform, but for the rounding of a float32.
    assert ((start_N - 1e-6 < uniform_N) & (uniform_N < end_N + 1e-6)).all()
    same_N = torch.searchsorted(end_NV, uniform_N[:, None].double(), right=True)[:, 0] == token_N
    assert same_N.sum() >= 198
    torch.testing.assert_close(logp_N.double(), plain_NV.gather(1, token_N[:, None])[:, 0], atol=2e-5, rtol=0)


def test_a_token_of_no_probability_is_never_chosen() -> None:
    logits_NV = torch.full((3, 512), float("-inf"))
    logits_NV[:, 5], logits_NV[:, 300] = 0.0, 0.0
    uniform_N = torch.tensor([0.0, 0.5, 1 - 2.0**-24])
    assert sample_token(logits_NV, uniform_N, 1.0)[0].tolist() == [5, 300, 300]


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(1000, 4)
    uniforms = torch.linspace(0, 0.999, 1000)
    assert set(sample_token(logits, uniforms, 1.0, top_k=2)[0].tolist()) == {0, 1}
    assert set(sample_token(logits, uniforms, 1.0, top_p=0.6)[0].tolist()) == {0, 1}
    assert set(sample_token(logits, uniforms, 1.0, top_p=0.4)[0].tolist()) == {0}
    # The recorded log-probability stays that of the full distribution.
    assert sample_token(logits, uniforms, 1.0, top_k=1)[1][0].item() == pytest.approx(np.log(0.5), rel=1e-5)


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_min_p_is_that_of_transformers(min_p: float, temperature: float) -> None:
    torch.manual_seed(0)
    logits_NV = 2 * torch.randn(50, 64)
    warped_NV = MinPLogitsWarper(min_p)(None, logits_NV / temperature)
    expected_NV = torch.softmax(warped_NV, dim=-1)
    if min_p < 1:
        assert ((expected_NV > 0).sum(dim=-1) > 1).any()
    # The middle of every token's interval gives that token.
    middle_NV = expected_NV.cumsum(dim=-1) - expected_NV / 2
    for token in range(64):
        possible_N = expected_NV[:, token] > 1e-5
        tokens_N, logp_N = sample_token(logits_NV, middle_NV[:, token], temperature, min_p=min_p)
        assert (tokens_N[possible_N] == token).all()
        full_N = torch.log_softmax(logits_NV / temperature, dim=-1)[:, token]
        torch.testing.assert_close(logp_N[possible_N], full_N[possible_N])


def test_each_prompt_token_is_computed_once_per_group_and_finished_rows_leave() -> None:
    policy = random_policy("llama")
    shapes: list[tuple[int, ...]] = []
    hook = policy.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: shapes.append(inputs[0].shape)
    )
    groups = sample(policy, group_size=8)
    hook.remove()
    prompt_tokens = sum(len(group.prompt_tokens) for group in groups)
    lengths = [len(completion) for group in groups for completion in group.completions]
    prefill, *decode = shapes
    assert prefill == (1, prompt_tokens)
    assert all(columns == 1 for _, columns in decode)
    assert decode[0][0] == 24 > decode[-1][0], "rows leave the batch as they finish"
    # Every token but the last of each completion is fed back once; a finished row stays until the next compaction.
    fed = sum(rows for rows, _ in decode)
    assert sum(length - 1 for length in lengths) <= fed < 24 * max(length - 1 for length in lengths)


def test_reordered_weights_compute_the_same(architecture: str) -> None:
    policy = random_policy(architecture)
    tokens = torch.arange(12).reshape(1, 12)
    tokens_T, positions_T, layout, _ = pack_prompts([tokens[0].numpy()], "cpu", PromptCache())
    plain = policy.logits(policy.hidden(tokens_T[None], positions_T[None], layout))
    with torch.no_grad(), reordered_weights(policy.model, 12):
        again = policy.logits(policy.hidden(tokens_T[None], positions_T[None], layout))
        assert not torch.equal(plain, torch.zeros_like(plain))
        torch.testing.assert_close(again, plain.detach(), atol=1e-4, rtol=1e-4)
    assert all("forward" not in vars(module) for module in policy.model.modules()), "the model is as it was"


def test_large_models_are_sampled_with_reordered_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy("llama")
    before = sample(policy)
    monkeypatch.setattr("grpo.rollout.cpu.linear.SMALL_MODEL", 10)
    used = []
    real = Block.__call__
    monkeypatch.setattr(Block, "__call__", lambda self, *inputs, **more: used.append(1) or real(self, *inputs, **more))
    after = sample(policy)
    assert used
    for a, b in zip(before, after, strict=True):
        assert [c.tokens.tolist() for c in a.completions] == [c.tokens.tolist() for c in b.completions]


@pytest.mark.parametrize(("max_concurrent", "rows"), [(5, 5), (100, 12)])
def test_weights_are_reordered_for_the_rows_that_run_at_once(
    max_concurrent: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_for = []
    monkeypatch.setattr(
        "grpo.rollout.cpu.decoding.sampling_layers", lambda policy, rows: made_for.append(rows) or nullcontext()
    )
    Engine(random_policy("llama"), max_concurrent).sample(
        PROBLEMS, 4, Sampling(seed=0, temperature=1.0, max_new_tokens=2)
    )
    assert made_for == [rows]


def test_finish_and_end_token() -> None:
    groups = sample(random_policy("llama"), group_size=8)
    completions = [completion for group in groups for completion in group.completions]
    assert {completion.finish for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert (completion.finish == "stop") == (completion.tokens[-1] == 1)
        assert 1 not in completion.tokens[:-1]
        assert completion.finish == "stop" or len(completion) == 16
        assert len(completion.text) == len(completion) - (completion.finish == "stop")


@pytest.mark.parametrize("max_concurrent", [1, 3, 5, 8, 100])
def test_few_rows_at_once_change_nothing(max_concurrent: int) -> None:
    policy = random_policy("llama", torch.float64)
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=8)
    whole = Engine(policy).sample(PROBLEMS, 4, sampling)
    most = []
    hook = policy.model.get_input_embeddings().register_forward_hook(lambda _, i, __: most.append(i[0].shape))
    batches = Engine(policy, max_concurrent).sample(PROBLEMS, 4, sampling)
    hook.remove()
    assert max(rows for rows, columns in most if columns == 1) <= max_concurrent
    for a, b in zip(whole, batches, strict=True):
        assert [c.tokens.tolist() for c in a.completions] == [c.tokens.tolist() for c in b.completions]


def test_rows_and_blocks_follow_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy("llama")
    # Keys and values: 2 layers x 2 x 2 heads x 8 wide x 4 bytes = 256 bytes a token; 12 bytes a logit of 48.
    monkeypatch.setattr("grpo.rollout.builtin.free_memory", lambda _: 1_000_000)
    assert Engine(policy).rows_that_fit(10, 30) == int(0.4 * 1_000_000 / (256 * 40 + 12 * 48)) == 36
    # Under CUDA graphs, blocks of 64 tokens beside the logits of 20 rows.
    assert Engine(policy).blocks_that_fit(20) == (400_000 - 20 * 12 * 48) // (256 * 64) == 23


def on_gpu(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """As if policies were on a GPU with so many free bytes. Nothing is computed there."""
    monkeypatch.setattr(Policy, "device", property(lambda _: torch.device("cuda")))
    for module in ("builtin", "expected"):
        monkeypatch.setattr(f"grpo.rollout.{module}.free_memory", lambda _: free)


def test_memory_too_small_for_one_completion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, sampling = random_policy("llama"), Sampling(seed=0, temperature=1.0, max_new_tokens=128)
    # A prompt of 65 tokens and a completion of 128 take 2 + 2 blocks of 16 384 bytes, the logits of 100 rows 57 600.
    needed = 4 * 16_384 + 100 * 576
    on_gpu(monkeypatch, int(needed / 0.4) + 3)
    engine = Engine(policy)
    engine.measure(100, 65, sampling)
    assert engine.cache_blocks == 4
    on_gpu(monkeypatch, int(needed / 0.4) - 3)
    message = (
        "memory: sampling 100 completions at once needs 123.1 kB (57.6 kB for logits, 65.5 kB for the keys and values "
        "of one), and may take 123.1 kB of the 307.8 kB free on cuda; lower prompts_per_step, group_size, "
        "evaluation.problems, max_new_tokens or system.max_concurrent_completions"
    )
    with pytest.raises(GrpoError, match=re.escape(message)):
        Engine(policy).measure(100, 65, sampling)
    few = Engine(policy, max_concurrent=10)
    few.measure(100, 65, sampling)
    assert few.cache_blocks == (needed - 1 - 10 * 576) // 16_384 == 7
    with pytest.raises(GrpoError, match="memory: sampling 1000 completions"):
        Engine(policy).blocks_that_fit(1000)


def test_what_memory_holds_is_measured_once_and_the_room_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=64)
    on_gpu(monkeypatch, 1_000_000)
    engine = Engine(random_policy("llama"))
    assert engine.room([64, 10, 65], 8, sampling) == Room(3 * 2 + 24, 24), "whole"
    assert (engine.max_concurrent, engine.cache_blocks) == (0, 0)
    engine.measure(24, 65, sampling)
    assert (engine.max_concurrent, engine.cache_blocks) == (0, (400_000 - 24 * 576) // 16_384) == (0, 23)
    on_gpu(monkeypatch, 0)
    engine.measure(1000, 65, sampling)
    assert engine.room([64, 10, 65], 8, sampling) == Room(23, 24)
    assert engine.room([64, 10], 4, sampling) == Room(2 + 8, 8)
    # Two rows have two prompts at most.
    assert Engine(random_policy("llama"), max_concurrent=2).room([64, 10, 65], 8, sampling) == Room(2 * 2 + 2, 2)


def test_a_kept_cache_that_memory_does_not_hold_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 rows of one block, with two prompts of one: 26 blocks of 16 384 bytes, and 24 rows of logits of 576."""
    work, taken = Work(prompts=2, group_size=12, prompt_tokens=64, new_tokens=64), 26 * 16_384 + 24 * 576
    on_gpu(monkeypatch, taken)
    engine = Engine(random_policy("llama"), cache_blocks=1000)
    assert (expect(engine, work), engine.cache_blocks) == ([], 1000), "no more are reserved than completions fill"
    on_gpu(monkeypatch, taken - 1)
    now = (int(0.4 * (taken - 1)) - 24 * 576) // 16_384
    assert expect(engine, work) == [
        "the run began with a KV cache of 1000 blocks, with which sampling takes 439.8 kB, and 439.8 kB are free on "
        f"cuda: it has {now} blocks from now on, so other completions are decoded together, and last bits may differ"
    ]
    assert engine.cache_blocks == now == 9
    on_gpu(monkeypatch, 1_000_000)
    fresh = Engine(random_policy("llama"))
    assert (expect(fresh, work), fresh.cache_blocks) == ([], (400_000 - 24 * 576) // 16_384)


def test_rows_of_restricted_sampling_do_not_limit_those_under_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Sampling(seed=0, temperature=1.0, max_new_tokens=64)
    restricted = replace(plain, top_k=5)
    on_gpu(monkeypatch, 1_000_000)
    engine = Engine(random_policy("llama"))
    engine.measure(100, 64, restricted)
    # 400 000 / (256 · 128 + 576) rows of full length.
    assert engine.room([64] * 25, 4, restricted) == Room(2 * 11, 11)
    assert (engine.max_concurrent, engine.cache_blocks) == (0, 0)
    engine.measure(100, 64, plain)
    assert engine.room([64] * 25, 4, plain) == Room((400_000 - 57_600) // 16_384, 100) == Room(20, 100)


def test_padded_policies_are_counted_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=64)
    on_gpu(monkeypatch, 1_000_000)
    policy = random_policy("llama")
    policy.padded = True
    engine = Engine(policy)
    engine.measure(100, 64, sampling)
    assert (engine.max_concurrent, engine.cache_blocks) == (11, 0)


def test_sampling_leaves_the_weights_alone() -> None:
    policy = random_policy("llama")
    before = [weight.clone() for weight in policy.model.parameters()]
    sample(policy)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_an_unknown_token_is_refused_unless_it_is_the_end_token() -> None:
    """GPT-2 names <|endoftext|> as its unknown, first and end token: a prompt may contain it."""
    policy, token, odd = random_policy("llama"), 2 + ord("z") % 46, Problem("odd", "1z", "")
    answer = Completion("2", np.array([4, 1]), np.zeros(2, np.float32), "stop")
    policy.tokenizer = type("Unknown", (CharacterTokenizer,), {"unk_token_id": token})()
    with pytest.raises(GrpoError, match="problem odd: llama has no token for part of '1z'; use another model"):
        sample(policy, [odd])
    with pytest.raises(GrpoError, match="llama has no token for a part of the row"):
        answered(odd, answer, policy)
    for name in ("eos_token_id", "bos_token_id"):
        policy.tokenizer = type("Gpt2", (CharacterTokenizer,), {"unk_token_id": token, name: token})()
        [group] = sample(policy, [odd])
        assert answered(odd, answer, policy).prompt_tokens.tolist() == group.prompt_tokens.tolist()


def test_prompts_that_cannot_be_sampled_are_named() -> None:
    policy = random_policy("llama")
    with pytest.raises(GrpoError, match="problem empty: the prompt has no tokens"):
        sample(policy, [Problem("empty", "", "")])
    with pytest.raises(
        GrpoError, match=r"problem long: 250 prompt tokens and max_new_tokens 16 exceed the 256 positions"
    ):
        sample(policy, [Problem("long", "x" * 250, "")])
