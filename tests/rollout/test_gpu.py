"""What holds on the CPU holds on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import grpo
from grpo.config import Config, Evaluation, Lora, System
from grpo.model.lora import adapt, adapted_layers, switched_off
from grpo.model.packing import pack
from grpo.model.policy import logprobs
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.types import Problem
from helpers.groups import random_groups
from helpers.plays import ScriptedEpisodes
from helpers.policies import ARCHITECTURES, random_policy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

PROBLEMS = [Problem("a", "hello", ""), Problem("b", "a longer prompt", "")]
GREEDY = Sampling(seed=0, temperature=0.0, max_new_tokens=16)
SAMPLED = Sampling(seed=0, temperature=1.0, max_new_tokens=16)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_tokens_equal_the_cpus(name: str) -> None:
    cpu, gpu = random_policy(name), random_policy(name)
    gpu.model.cuda()
    on_cpu = Engine(cpu).sample(PROBLEMS, 1, GREEDY)
    on_gpu = Engine(gpu).sample(PROBLEMS, 1, GREEDY)
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert a.completions[0].tokens.tolist() == b.completions[0].tokens.tolist()


def test_one_set_of_graphs_serves_every_temperature() -> None:
    policy = random_policy("llama")
    policy.model.cuda()
    engine = Engine(policy)
    first = engine.sample(PROBLEMS, 2, GREEDY)
    held = engine.graphs
    drawn = engine.sample(PROBLEMS, 2, SAMPLED)
    again = engine.sample(PROBLEMS, 2, GREEDY)
    assert engine.graphs is held
    assert [c.tokens.tolist() for g in first for c in g.completions] == [
        c.tokens.tolist() for g in again for c in g.completions
    ]
    assert drawn[0].completions[0].tokens.tolist() != drawn[0].completions[1].tokens.tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_that_come_and_go_sample_the_same_tokens(name: str) -> None:
    """64 prompts × 4 in float32: all rows at once, 40 at a time, and in a cache so small that rows are dropped."""
    policy = random_policy(name)
    policy.model.cuda()
    policy.end_tokens = frozenset([3])  # a length of about 48
    problems = [Problem(str(i), "a prompt"[: 1 + i % 8], "") for i in range(64)]
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=200)
    whole, few, small = (Engine(policy, *room) for room in ((0, 0), (40, 0), (0, 70)))
    expected = [c.tokens.tolist() for group in whole.sample(problems, 4, sampling) for c in group.completions]
    assert len(set(map(len, expected))) > 50
    for engine in (few, small):
        found = [c.tokens.tolist() for group in engine.sample(problems, 4, sampling) for c in group.completions]
        for n, (tokens, wanted) in enumerate(zip(found, expected, strict=True)):
            apart = [t for t, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b]
            assert tokens == wanted, (
                f"completion {n} differs first at token {apart[:1]}, lengths {len(tokens)}, {len(wanted)}"
            )


@pytest.mark.parametrize("stop", [(), ("F", "GA")])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_episodes_equal_the_cpus(name: str, stop: tuple[str, ...]) -> None:
    """24 prompts × 4 in float32, of one to four turns of at most 30 tokens: all rows at once, 10 at a time, and in a
    cache so small that rows are dropped."""
    problems = [Problem(str(i), "a prompt"[: 1 + i % 8], "") for i in range(24)]
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=150, stop=stop)

    def sampled(device: str, *room: int) -> list[list[object]]:
        policy = random_policy(name)
        policy.model.to(device)
        policy.end_tokens = frozenset([3, 4])
        script = ScriptedEpisodes(max_turn_tokens=30, openings={n: [5, 3, 6] for n in range(0, 96, 5)})
        groups = Engine(policy, *room, episodes=script).sample(problems, 4, sampling)
        return [
            [c.sequence.tolist(), c.sampled.tolist(), c.turns, c.finish] for group in groups for c in group.completions
        ]

    expected = sampled("cpu")
    assert {len(completion[2]) for completion in expected} >= {1, 2, 3}
    for room in ((0, 0), (10, 0), (0, 30)):
        for n, (found, wanted) in enumerate(zip(sampled("cuda", *room), expected, strict=True)):
            assert found == wanted, f"completion {n} in room {room}"


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-window"])
def test_prompts_read_by_a_captured_graph_equal_the_cpus(name: str) -> None:
    """The first of a size compiles, the second is captured, the third replayed with other tokens in its place."""
    cpu, gpu = random_policy(name), random_policy(name)
    gpu.model.cuda()
    engine = Engine(gpu)
    for step, texts in enumerate(
        (["hello", "a longer prompt"], ["jolly", "another"], ["words", "is long"], ["a", "b"])
    ):
        problems = [Problem(f"{step}/{i}", text, "") for i, text in enumerate(texts)]
        expected = Engine(cpu).sample(problems, 1, GREEDY)
        found = engine.sample(problems, 1, GREEDY)
        for a, b in zip(expected, found, strict=True):
            assert a.completions[0].tokens.tolist() == b.completions[0].tokens.tolist()
    assert engine.graphs is not None
    assert len(engine.graphs.prefill.graphs) == 1


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_sampler_and_trainer_agree(name: str, dtype: torch.dtype, bound: float) -> None:
    policy = random_policy(name, dtype)
    policy.model.cuda()
    groups = Engine(policy).sample(PROBLEMS, 8, SAMPLED)
    for batch in pack(groups, 100, "cuda"):
        logp_NL, _ = logprobs(policy, batch, 1.0)
        assert (logp_NL - batch.sampler_logp_NL)[batch.mask_NL].abs().mean() < bound


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("compute", "bound"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_sampler_and_trainer_agree_in_mixed_precision(name: str, compute: torch.dtype, bound: float) -> None:
    policy = random_policy(name)
    policy.model.cuda()
    policy.compute = compute
    groups = Engine(policy).sample(PROBLEMS, 64, SAMPLED)
    gaps = []
    with torch.no_grad():
        for batch in pack(groups, 4000, "cuda"):
            logp_NL, _ = logprobs(policy, batch, 1.0)
            assert logp_NL.dtype == torch.float32
            gaps.append((logp_NL - batch.sampler_logp_NL)[batch.mask_NL])
    gap = torch.cat(gaps)
    assert gap.abs().mean() < bound
    assert abs(float(gap.exp().mean()) - 1) < 0.005


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma"])
@pytest.mark.parametrize(("compute", "bound"), [(None, 1e-4), (torch.bfloat16, 0.04), (torch.float16, 0.006)])
def test_sampler_and_trainer_agree_on_adapters(name: str, compute: torch.dtype | None, bound: float) -> None:
    """Again after the adapter has moved, which captured graphs must follow, and not on the model without it."""
    policy = random_policy(name)
    policy.model.cuda()
    policy.name, policy.compute = "nano", compute
    adapt(policy, Lora(rank=3, alpha=6.0), seed=1)
    engine = Engine(policy)
    for size in (0.2, -0.2):
        torch.manual_seed(5)
        with torch.no_grad():
            for layer in adapted_layers(policy.model):
                layer.lora_B["default"].weight.normal_(std=0.2).mul_(size / 0.2)
            groups = engine.sample(PROBLEMS, 64, SAMPLED)
            [batch] = pack(groups, 100_000, "cuda")
            found, _ = logprobs(policy, batch, 1.0)
            with switched_off(policy.model):
                without, _ = logprobs(policy, batch, 1.0)
        assert (found - batch.sampler_logp_NL)[batch.mask_NL].abs().mean() < bound
        assert (without - batch.sampler_logp_NL)[batch.mask_NL].abs().mean() > 0.3


@pytest.mark.parametrize(("compute", "bound"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_training_in_mixed_precision_has_the_gradient_of_float32(compute: torch.dtype, bound: float) -> None:
    policy, groups = random_policy("llama"), random_groups()
    policy.model.cuda()
    gradients = []
    for policy.compute in (None, compute):
        logp_NL, _ = logprobs(policy, pack(groups, 10_000, "cuda")[0], 1.0)
        policy.model.zero_grad()
        logp_NL.sum().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in policy.model.parameters()]))
    exact, mixed = gradients
    assert mixed.dtype == torch.float32
    assert (exact - mixed).norm() / exact.norm() < bound


def test_packed_logprobs_equal_the_cpus() -> None:
    cpu, gpu = random_policy("llama"), random_policy("llama")
    gpu.model.cuda()
    groups = random_groups()
    expected, _ = logprobs(cpu, pack(groups, 10_000)[0], 1.0)
    found, _ = logprobs(gpu, pack(groups, 10_000, "cuda")[0], 1.0)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=1e-3)


def test_nano_learns(tmp_path: Path) -> None:
    config = Config(
        model="nano",
        steps=40,
        lr=3e-4,
        max_new_tokens=16,
        evaluation=Evaluation(every=0, problems=300),
        system=System(runs=str(tmp_path), device="cuda"),
    )
    with grpo.train(config) as run:
        before, after = run.evals()
        gaps = [gap for _, gap in run.series("sampler_gap")]
    assert max(gaps) < 5e-3
    assert after["low"] > before["high"]
    assert after["worked_share"] > before["worked_share"] + 0.3


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_stop_strings_cut_the_same_completions(name: str) -> None:
    """With 80 tokens the host looks for stop strings twice, and rows leave the batch then."""
    policy = random_policy(name)
    policy.end_tokens = frozenset()  # so that rows are long
    policy.model.cuda()
    engine = Engine(policy)
    longer = replace(SAMPLED, max_new_tokens=80)
    free = [c for group in engine.sample(PROBLEMS, 16, longer) for c in group.completions]
    strings = (free[0].text[40:42], free[20].text[10:12])
    found = [c for group in engine.sample(PROBLEMS, 16, replace(longer, stop=strings)) for c in group.completions]
    again = [c for group in engine.sample(PROBLEMS, 16, longer) for c in group.completions]
    cuts = 0
    for whole, part, after in zip(free, found, again, strict=True):
        ends = [whole.text.find(string) + 2 for string in strings if string in whole.text]
        cuts += bool(ends)
        assert part.tokens.tolist() == whole.tokens[: min(ends, default=80)].tolist()
        assert part.finish == ("stop" if ends else "length")
        assert after.tokens.tolist() == whole.tokens.tolist(), "graphs are as they were"
    assert cuts >= 2
