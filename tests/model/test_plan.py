"""Predictions against measurement: bytes by the allocator, operations by torch's counter, models by transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import transformers
from torch.utils.flop_counter import FlopCounterMode

import grpo
import grpo.model.plan.memory as memory_module
import grpo.model.policy
from grpo.cli.commands.plan import options_of
from grpo.cli.main import main
from grpo.config import Config, Evaluation, Lora, Optimizer, Scale, SftConfig, System
from grpo.config.presets import PRESETS
from grpo.config.schema import Loss
from grpo.distributed.world import ALONE as WORLD_OF_ONE
from grpo.distributed.world import World
from grpo.errors import GrpoError
from grpo.model.attention import NAME
from grpo.model.critic import make_critic
from grpo.model.fused.weights import can_be_fused
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.lora import adapt, freeze
from grpo.model.optimizer import AdamW, make_optimizer
from grpo.model.packed_check import equals_stock
from grpo.model.packing import pack
from grpo.model.padded import can_be_packed
from grpo.model.plan import (
    GIB,
    PRECISIONS,
    SHAPES,
    Memory,
    Needs,
    Shape,
    Work,
    cache,
    find_shape,
    flops,
    fused,
    gpu_memory,
    memory_of,
    needs,
    shape_of,
)
from grpo.model.plan.gpus import SPEEDS
from grpo.model.plan.memory import saved
from grpo.model.plan.seconds import decoding, rollout_seconds
from grpo.model.plan.shape import PADDED, PADDED_WHEN_LOADED, typical_shape
from grpo.model.plan.shard import SHARDS, Shard
from grpo.model.policy import Policy, logprobs
from grpo.rollout import builtin, schedule
from grpo.rollout.builtin import Engine
from grpo.rollout.cpu import linear as packed
from grpo.rollout.protocol import Sampling
from grpo.tasks import load_task
from grpo.training.credit import credit
from grpo.training.loop import update
from grpo.training.memory_check import SHARE_OF_FREE, check_memory, sft_shard
from grpo.types import Completion, Group, Problem
from helpers.groups import annotated
from helpers.policies import SHAPE, CharacterTokenizer
from helpers.policies import random_policy as small_policy
from helpers.tensor_bytes import peak_bytes, saved_bytes

DTYPES = {"float32": torch.float32, "mixed": torch.float32, "bfloat16": torch.bfloat16}
"""All there are but half, which takes what mixed takes."""
SIZES = dict.fromkeys(("num_attention_heads", "hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers"), 8)
"""For configs that call theirs otherwise."""
ALONE = Needs(reference=False, critic=False)
MEDIUM = {
    "vocab_size": 3000,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


class Letters:
    """A token per letter."""

    chat_template = None
    unk_token_id = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 17 for letter in text]}

    def batch_decode(self, rows: Sequence[Any]) -> list[str]:
        return ["" for _ in rows]


def random_policy(family: str = "Llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Policy:
    """No token ends a completion: all are as long as they may be, and as long as predicted."""
    config = getattr(transformers, f"{family}Config")(**(MEDIUM | {"tie_word_embeddings": True} | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=dtype)
    return Policy(model.eval(), Letters(), "nano", frozenset([1_000_000]))


def random_groups(prompts: int, group_size: int, prompt: int, new: int) -> list[Group]:
    rng = np.random.default_rng(0)

    def completion(reward: float) -> Completion:
        tokens, zeros = rng.integers(2, 17, new), np.zeros(new, dtype=np.float32)
        return Completion("", tokens, zeros, "length", reward=reward, advantages=zeros + (1 if reward else -1))

    return [
        Group(
            Problem(str(p), "", ""),
            rng.integers(2, 17, prompt),
            tuple(completion(float(g % 2)) for g in range(group_size)),
            0,
        )
        for p in range(prompts)
    ]


# Shapes


def config_folder(folder: Path, config: transformers.PretrainedConfig) -> str:
    config.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("Mixtral", 8),
        ("Qwen2Moe", 60),
        ("Qwen3Moe", 128),
        ("GptOss", 128),
        ("DeepseekV3", 256),
        ("Llama", 0),
        ("Doge", 0),
    ],
)
def test_mixtures_of_experts_are_not_planned(tmp_path: Path, name: str, experts: int) -> None:
    config = getattr(transformers, f"{name}Config")()
    folder = config_folder(tmp_path, config)
    if not experts:
        assert find_shape(folder).layers == config.num_hidden_layers
        return
    with pytest.raises(
        GrpoError,
        match=rf"field model: \S+ \({config.model_type}\) is a mixture of {experts} experts, which cannot be planned; "
        r"plan a dense model of the same total size instead \(--params 30B\)",
    ):
        find_shape(folder)


def test_a_run_of_experts_predicts_no_peak(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 48}
    mixture = transformers.MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    config = Config(model=config_folder(tmp_path, mixture))
    assert check_memory(config, load_task("addition"), torch.device("cpu")).predicted is None


def test_plans_of_padded_models_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config_folder(tmp_path, transformers.Gemma2Config())
    warning = "model type gemma2 runs padded, each completion with its prompt, and this plan assumes packed rows"
    assert main(["plan", folder, "--algorithm", "grpo"]) == 0
    assert f"Warning: {warning}" in capsys.readouterr().out
    assert main(["plan", folder, "--algorithm", "grpo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0].startswith(warning)
    assert main(["plan", "qwen2.5-1.5b", "--algorithm", "grpo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


@pytest.mark.parametrize("family", sorted(PADDED | {"gemma2", "vaultgemma"}))
def test_padded_families_cannot_be_packed(family: str) -> None:
    config = transformers.CONFIG_MAPPING[family]()
    model_class = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    assert not can_be_packed(model_class, config)
    assert shape_of(config.to_dict(), family).padded == family


@pytest.mark.parametrize("family", sorted(PADDED_WHEN_LOADED))
def test_families_found_when_loaded_differ_from_the_stock_model(family: str) -> None:
    config = transformers.CONFIG_MAPPING[family](**SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    assert can_be_packed(type(model), config)
    assert not equals_stock(Policy(model.eval(), CharacterTokenizer(), family, frozenset([1])))
    assert shape_of(config.to_dict(), family).padded == family


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_parameters_are_those_published(name: str, published: int) -> None:
    assert SHAPES[name].parameters == published


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_equal_the_models(family: str, tied: bool) -> None:
    model = random_policy(family, tie_word_embeddings=tied).model
    counted = sum(weight.numel() for weight in model.parameters())
    assert shape_of(model.config.to_dict(), family).parameters == counted


def test_shapes_by_name() -> None:
    assert find_shape("Qwen/Qwen2.5-1.5B-Instruct") == SHAPES["qwen2.5-1.5b"]
    assert find_shape("nano").parameters == 101_888
    assert find_shape("7B") == typical_shape("7B")
    for size, parameters in (("135M", 0.135e9), ("1.5B", 1.5e9), ("7B", 7e9), ("13B", 13e9), ("70B", 70e9)):
        assert typical_shape(size).parameters == pytest.approx(parameters, rel=0.01)


def test_what_is_fused_is_told_by_the_config(architecture: str) -> None:
    model = small_policy(architecture).model
    assert shape_of(SIZES | model.config.to_dict(), architecture).fused == can_be_fused(model)


def test_adapters_by_hand() -> None:
    """tiny: hidden and all heads 160 wide, feed-forward 432, 3 layers; rank 4 on q k v o (160 + 160 each), gate, up
    and down (592 each)."""
    assert find_shape("tiny").adapter_parameters(4) == 3 * 4 * (4 * 320 + 3 * 592)


# What a step holds


@pytest.mark.parametrize("budget", [100, 340, 700, 5000])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_micro_batches_are_those_of_pack(budget: int, minibatches: int) -> None:
    work = Work(prompts=6, group_size=8, prompt_tokens=20, new_tokens=40, token_budget=budget, minibatches=minibatches)
    batches = pack(random_groups(6 // minibatches, 8, 20, 40), budget)
    fullest = work.micro_batch()
    assert (fullest.count, fullest.tokens) == (len(batches), max(len(batch.tokens_T) for batch in batches))


def test_the_chunk_of_logits_is_the_policys() -> None:
    assert memory_module.LOGITS_AT_ONCE == grpo.model.policy.LOGITS_AT_ONCE
    assert memory_module.CACHED_MODEL == packed.SMALL_MODEL


@pytest.mark.parametrize("model", ["nano", "tiny", "Llama", "Qwen2", "Qwen3", "heads", "adapters"])
@pytest.mark.parametrize("precision", DTYPES)
def test_saved_activations(model: str, precision: str) -> None:
    """`heads`: as many keys as queries, which saves the copies per head. `adapters`: LoRA of rank 8."""
    lora = 8 if model == "adapters" else 0
    if model in ("nano", "tiny"):
        policy = load_policy(model, dtype=DTYPES[precision])
    else:
        changes = {"num_key_value_heads": 6} if model == "heads" else {}
        policy = random_policy("Llama" if model in ("heads", "adapters") else model, DTYPES[precision], **changes)
    policy.compute = torch.bfloat16 if precision == "mixed" else None
    if lora:
        adapt(policy, Lora(rank=lora), seed=1)
    [batch] = pack(random_groups(3, 4, 12, 25), 10_000)
    measured = saved_bytes(lambda: logprobs(policy, batch, 1.0, train_entropy=False), policy.model)
    shape = shape_of(policy.model.config.to_dict(), model)
    work = Work(prompts=3, group_size=4, prompt_tokens=12, new_tokens=25)
    log_probabilities = 4 * shape.vocabulary * 3 * 4 * 25  # one chunk: kept
    predicted = saved(shape, work.micro_batch(), PRECISIONS[precision], lora) + log_probabilities
    assert predicted == pytest.approx(measured, rel=0.04)


WORKS = {
    "one micro-batch": Work(prompts=4, group_size=6, prompt_tokens=16, new_tokens=32),
    "several micro-batches": Work(prompts=4, group_size=6, prompt_tokens=16, new_tokens=32, token_budget=500),
    "large vocabulary, short": Work(prompts=8, group_size=4, prompt_tokens=24, new_tokens=4),
    "two updates": Work(prompts=4, group_size=6, prompt_tokens=16, new_tokens=32, minibatches=2),
}


PEAKS = [
    *(
        (work, algorithm, list(DTYPES)[(row + column) % len(DTYPES)])
        for row, work in enumerate(WORKS)
        for column, algorithm in enumerate(("grpo", "dr_grpo", "ppo"))
    ),
    *(("several micro-batches", "adapters", dtype) for dtype in DTYPES),
]
"""Every pair of work and algorithm, of work and precision, and of algorithm and precision."""


@pytest.mark.parametrize(("name", "algorithm", "dtype"), PEAKS)
def test_peak_of_a_step(name: str, algorithm: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole steps: sampling, log-probabilities under the reference, update. Predicted within 2%."""
    algorithm, lora = ("grpo", 8) if algorithm == "adapters" else (algorithm, 0)
    once = 2**19  # so that a small vocabulary, too, comes in chunks
    monkeypatch.setattr(grpo.model.policy, "LOGITS_AT_ONCE", once)
    monkeypatch.setattr(memory_module, "LOGITS_AT_ONCE", once)
    work = WORKS[name]
    options = {"vocab_size": 15_000 if name.startswith("large") else 3000, "dtype": DTYPES[dtype]}
    compute = torch.bfloat16 if dtype == "mixed" else None
    policy = replace(random_policy(**options), compute=compute)
    reference = replace(random_policy(**options), compute=compute) if PRESETS[algorithm].settings.beta else None
    if lora:
        adapt(policy, Lora(rank=lora), seed=1)
        reference = policy
    elif reference:
        freeze(reference)
    config = Config(
        algorithm=algorithm,
        prompts_per_step=work.prompts,
        group_size=work.group_size,
        max_new_tokens=work.new_tokens,
        optimizer=Optimizer(minibatches=work.minibatches),
        system=System(token_budget=work.token_budget),
    )
    needed = needs(config.loss, config.critic)
    monkeypatch.setattr(
        "grpo.model.critic.load_policy", lambda *_, **__: replace(random_policy(**options), compute=compute)
    )
    measured = measured_peak(policy, reference, config, work)
    shape = shape_of(policy.model.config.to_dict(), "random")
    predicted = memory_of(shape, work, needed, PRECISIONS[dtype], lora=lora)
    assert predicted.peak == pytest.approx(measured, rel=0.02)


def measured_peak(
    policy: Policy,
    reference: Policy | None,
    config: Config,
    work: Work,
    world: World = WORLD_OF_ONE,
    shard: str = "none",
) -> int:
    """Bytes at the peak of two whole steps: models, masters of 16-bit weights, and what is allocated in the steps."""
    optimizer = make_optimizer(policy, Optimizer(), world, shard)
    critic = make_critic(config, policy, world, shard) if config.loss.baseline == "value" else None

    def step(number: int) -> None:
        problems = [Problem(f"{number}/{i}", "p" * work.prompt_tokens, "") for i in range(work.prompts)]
        sampling = Sampling(seed=1, step=number, temperature=1.0, max_new_tokens=work.new_tokens)
        groups = Engine(policy).sample(problems, work.group_size, sampling)
        groups = [
            replace(
                group, completions=tuple(replace(done, reward=float(i % 2)) for i, done in enumerate(group.completions))
            )
            for group in groups
        ]
        groups = annotated(groups, policy, reference, config, critic)
        update(policy, optimizer, credit(groups, config)[0], config, 10 + number, critic)  # the critic is warm

    models = {model for model in (policy, reference, critic and critic.body) if model}
    loaded = sum(weight.nbytes for model in models for weight in model.model.parameters())
    optimizers = [optimizer, *([critic.optimizer] if critic else [])]
    masters = sum(
        piece.nbytes for each in optimizers for piece, weight in pieces_of(each) if piece.dtype != weight.dtype
    )
    peak, _ = peak_bytes(lambda: [step(0), step(1)])
    return loaded + masters + peak


def pieces_of(optimizer: AdamW) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every piece that the optimizer updates, and its weight in the model."""
    weights = list(optimizer.named.values())
    return [(piece, weights[optimizer.ranks.number[piece]]) for piece in optimizer.ranks.parameters]


@pytest.fixture
def rank_0_of_4() -> Iterator[World]:
    """A process group whose other ranks are not there; it sends everything to nobody."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
    yield World(rank=0, size=4, tensors=dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("shard", "algorithm", "dtype"),
    [
        ("none", "dr_grpo", "float32"),
        ("none", "ppo", "mixed"),
        ("optimizer", "dr_grpo", "mixed"),
        ("optimizer", "ppo", "float32"),
        ("weights", "dr_grpo", "float32"),
        ("weights", "ppo", "mixed"),
    ],
)
def test_peak_of_a_rank(
    shard: Shard, algorithm: str, dtype: str, rank_0_of_4: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two whole steps of one rank of four, with a quarter of 8 prompts, in each mode; every pair of the parameters.
    Predicted within 2%."""
    whole = Work(prompts=8, group_size=4, prompt_tokens=8, new_tokens=16)
    compute = torch.bfloat16 if dtype == "mixed" else None

    def policy() -> Policy:
        return replace(random_policy(), compute=compute)

    monkeypatch.setattr("grpo.model.critic.load_policy", lambda *_, **__: policy())
    settings = Config(algorithm=algorithm, loss=Loss(beta=0.0))
    work, trained = whole.share(4), policy()
    measured = measured_peak(trained, None, settings, work, rank_0_of_4, shard)
    shape = shape_of(trained.model.config.to_dict(), "random")
    needed = needs(settings.loss, settings.critic)
    predicted = memory_of(shape, whole, needed, PRECISIONS[dtype], shard=shard, ranks=4)
    assert predicted.peak == pytest.approx(measured, rel=0.02)


def test_an_entropy_that_is_only_measured_keeps_no_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for its gradient, so what it would need for one must not wait for the end of the backward pass."""
    monkeypatch.setattr(grpo.model.policy, "LOGITS_AT_ONCE", 2**17)
    policy = random_policy(vocab_size=20_000, num_hidden_layers=1, hidden_size=48)
    [batch] = pack(random_groups(2, 4, 10, 20), 10_000)
    peaks, gradients = [], []

    def backward(trained: bool) -> None:
        logp_NL, entropy_NL = logprobs(policy, batch, 1.0, train_entropy=trained)
        logp_NL.sum().backward()
        assert entropy_NL.shape == logp_NL.shape  # it is there to the end, as in training

    for trained in (False, True):
        policy.model.zero_grad()
        peaks.append(peak_bytes(partial(backward, trained))[0])
        gradients.append([weight.grad.clone() for weight in policy.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    logits = 4 * 20_000 * 2 * 4 * 20
    assert peaks[1] - peaks[0] > logits


def test_what_a_gpu_keeps_by_hand() -> None:
    """tiny in mixed precision: 1 920 bytes of keys and values a token; a block of 64 tokens for each of 2 prompts and 8
    completions, and a spare one; noise, token and log-probability of 30 tokens, 4 bytes each; and a copy of the linear
    maps and the output layer in 2 bytes."""
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    gpu = memory_of(shape, work, ALONE, PRECISIONS["mixed"], on_gpu=True)
    assert gpu.components["keys/values"] == 1920 * 64 * (2 + 8 + 1) + 12 * 8 * 30
    assert gpu.components["working copies"] == 2 * (shape.linear_parameters + 19 * 160)
    kept = gpu.components["keys/values"] + gpu.components["working copies"]
    assert gpu.phases["rollout"] == 12 * shape.parameters + kept + 4 * 19 * (8 + 2 * 2)


def test_the_cache_takes_a_share_of_the_memory_beside_the_weights() -> None:
    """tiny in mixed precision, with a copy of its linear maps: of what both leave, 0.4 holds 5 blocks and a half. Two
    blocks, of a prompt and a completion, are the least, and those of all 2 + 8 the most."""
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    loaded, block = 4 * shape.parameters + 2 * (shape.linear_parameters + 19 * 160), 1920 * 64

    def planned(available: int) -> tuple[int, int]:
        found = memory_of(shape, work, ALONE, PRECISIONS["mixed"], on_gpu=True, available=available)
        return found.cache_blocks, found.components["keys/values"]

    assert planned(loaded + round(5.5 / 0.4 * block)) == (5, 6 * block + 12 * 8 * 30)
    assert [planned(available)[0] for available in (0, 1, 10**12)] == [10, 2, 10]
    few = memory_of(shape, replace(work, concurrent=3), ALONE, PRECISIONS["mixed"], on_gpu=True)
    assert few.cache_blocks == 2 + 3
    assert few.components["keys/values"] == 6 * block + 12 * 8 * 30, "noise, tokens and log-probs of all completions"
    evaluated = replace(work, heldout=20)
    assert memory_of(shape, evaluated, ALONE, PRECISIONS["mixed"], on_gpu=True).cache_blocks == 40
    assert memory_of(shape, work, ALONE, PRECISIONS["mixed"]).cache_blocks == 0, "a CPU has none"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_fused_blocks_keep_by_hand(checkpointing: bool) -> None:
    """tiny in mixed precision, 2 × 10 + 8 × 30 = 260 tokens. A block keeps its input, 160 × 4 bytes; and unless it
    forgets, 160 × 4 between, 480 × 2 of queries, keys and values, 160 × 2 mixed, 5 × 4 sums, 2 × 4 scales, 864 × 2 of
    gate and up. At the ends 160 × 4 and 160 × 2; before the output layer 160 × 2 for each of the 240 trained."""
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    found = memory_of(shape, work, ALONE, PRECISIONS["mixed"], on_gpu=True, gradient_checkpointing=checkpointing)
    inside = 640 + 960 + 320 + 20 + 8 + 1728
    block = 640 if checkpointing else 640 + inside
    assert found.components["activations"] == 260 * (3 * block + 640 + 320) + 240 * 320
    # Widest: the last block's backward pass, with the residual's gradient, twice narrow, and four gates.
    assert found.components["logits"] == 260 * (640 + 640 + 3456 + inside * checkpointing)


def test_what_the_output_layer_takes_by_hand() -> None:
    """tiny with a vocabulary of 100 000, in mixed precision: 3 840 trained tokens, in chunks of 1 024. The gradient of
    all logits, in 2 bytes, beside a chunk of logits, in 4. If logits are computed again, only their chunk's gradient,
    beside that of the 160 wide hidden states."""
    shape = replace(find_shape("tiny"), vocabulary=100_000)
    work, bonus = Work(prompts=16, group_size=8, prompt_tokens=10, new_tokens=30), replace(ALONE, entropy=True)

    def planned(needed: Needs, **options: Any) -> Memory:
        return memory_of(shape, work, needed, PRECISIONS["mixed"], on_gpu=True, **options)

    kept, recomputed = planned(ALONE), planned(bonus)
    assert kept.components["logits"] == 2 * 3840 * 100_000 + 4 * 1024 * 100_000
    assert recomputed.components["logits"] == 6 * 1024 * 100_000 + 2 * 160 * 3840
    assert kept.components["activations"] == recomputed.components["activations"]
    checkpointed = planned(ALONE, gradient_checkpointing=True)
    assert checkpointed.components["logits"] == recomputed.components["logits"]
    # The only micro-batch: the weights' gradient, in float32, comes after the last chunk of logits, beside two copies
    # of the hidden states, and here is smaller than a chunk; then the blocks' backward passes begin.
    resident = sum(kept.components[name] for name in ("weights", "optimizer", "working copies", "keys/values"))
    most = kept.components["activations"] + kept.components["logits"]
    assert 4 * 160 * 100_000 + 2 * 2 * 160 * 3840 < 4 * 1024 * 100_000
    assert kept.phases["update"] == resident + most
    assert (
        recomputed.phases["update"]
        == resident + sum(recomputed.components[name] for name in ("activations", "logits")) + 4 * 160 * 100_000
    )


@pytest.mark.parametrize("rows", [100, 5])
@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("keep_gradient", [False, True])
def test_what_the_output_layer_takes_as_measured(
    keep_gradient: bool, earlier: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 tokens, a vocabulary of 2 000, 64 wide, all in 32 bits: chunks of 100 tokens take more than the hidden
    states and the weights' gradient, chunks of 5 less. Up to ten numbers a token are not planned. The kernels are left
    out: without a GPU they are interpreted, in memory of their own."""
    pytest.importorskip("triton")
    from grpo.model.fused import head, kernels

    monkeypatch.setattr(kernels, "token_logprobs", lambda logits, *_: 3 * (logits.new_zeros(len(logits)),))
    monkeypatch.setattr(kernels, "token_logprobs_backward", lambda *_: None)
    for module in (head, fused):
        monkeypatch.setattr(module, "FEWEST_ROWS", rows)
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 0)
    hidden, weight = torch.randn(400, 64, requires_grad=True), torch.nn.Parameter(torch.randn(2000, 64))
    target = torch.zeros(400, dtype=torch.int64)

    def run() -> None:
        weight.grad = before
        logp, _ = head.token_logprobs(hidden, weight.detach(), weight, target, 1.0, keep_gradient=keep_gradient)
        logp.sum().backward()

    before, table = (torch.zeros(2000, 64), 0) if earlier else (None, 4 * 2000 * 64)
    measured, _ = peak_bytes(run)
    shape = replace(find_shape("tiny"), vocabulary=2000, hidden=64)
    batch = Work(prompts=1, group_size=1, prompt_tokens=0, new_tokens=400).micro_batch()
    assert measured - 4 * 10 * 400 < fused._output_layer(shape, batch, 4, keep_gradient, table) <= measured


def test_a_cpu_samples_no_more_rows_at_once_than_its_memory_holds() -> None:
    """The weights of smollm2-135m and their copy beside 8 GB: 40% of what they leave holds 332 of 500 completions."""
    shape, precision = find_shape("smollm2-135m"), PRECISIONS["float32"]
    work = Work(prompts=16, group_size=8, prompt_tokens=40, new_tokens=128, heldout=500)
    loaded = 4 * (shape.parameters + shape.linear_parameters + shape.embedding)
    rows = int(0.4 * (8e9 - loaded) / (46_080 * 168 + 12 * 49_152))
    found = memory_of(shape, work, ALONE, precision, available=8 * 10**9)
    assert rows == 332
    assert found == memory_of(shape, replace(work, concurrent=rows), ALONE, precision)
    assert found.phases["rollout"] < 8e9 < memory_of(shape, work, ALONE, precision).phases["rollout"]
    few = replace(work, concurrent=3)
    assert memory_of(shape, few, ALONE, precision, available=8 * 10**9) == memory_of(shape, few, ALONE, precision)


def test_what_a_run_would_refuse_to_sample_does_not_fit() -> None:
    """Its rollout takes the memory of which the KV cache's share holds one completion, with its prompt and the logits
    of all rows. Else a plan would decode one row at a time."""
    shape, precision = find_shape("qwen2.5-0.5b"), PRECISIONS["mixed"]
    work = Work(prompts=512, group_size=16, prompt_tokens=64, new_tokens=64)
    copied = 2 * (shape.linear_parameters + shape.embedding)
    wanted = 4 * shape.parameters + copied + math.ceil((8192 * 12 * 151936 + 2 * 24 * 128 * 2 * 64 * 2) / 0.4)
    phase = {
        available: memory_of(shape, work, ALONE, precision, on_gpu=True, available=available).phases["rollout"]
        for available in (0, wanted - 1, wanted)
    }
    assert phase[wanted - 1] == wanted
    assert phase[wanted] < phase[0] < wanted
    padded = memory_of(replace(shape, padded="stablelm"), work, ALONE, precision, on_gpu=True, available=wanted - 1)
    assert padded.phases["rollout"] < wanted, "rows are counted, and none is refused"


def test_planning_repeats_the_constants_of_the_code() -> None:
    from grpo.model.fused import head

    assert (fused.LOGITS_AT_ONCE, fused.FEWEST_ROWS) == (head.LOGITS_AT_ONCE, head.FEWEST_ROWS)
    assert (cache.BLOCK_TOKENS, cache.SHARE_OF_FREE_MEMORY) == (schedule.BLOCK_TOKENS, builtin.SHARE_OF_FREE_MEMORY)
    assert cache.LOGIT_BYTES == builtin.LOGIT_BYTES


def test_the_planned_cache_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiny in float32: 3 840 bytes a token; 19 logits of 12 bytes for each of 1 319 rows, which an evaluation has."""
    free = 10**9
    monkeypatch.setattr("grpo.rollout.builtin.free_memory", lambda _: free)
    work = Work(prompts=16, group_size=8, prompt_tokens=100, new_tokens=1000, heldout=1319)
    planned = cache.cache_blocks(find_shape("tiny"), work, 4, free)
    assert planned == (400_000_000 - 12 * 19 * 1319) // (3840 * 64) == 1626
    assert Engine(load_policy("tiny")).blocks_that_fit(work.rows) == planned
    rows = cache.rows_that_fit(find_shape("tiny"), work, 4, free)
    assert rows == Engine(load_policy("tiny")).rows_that_fit(100, 1000) == 400_000_000 // (3840 * 1100 + 12 * 19) == 94
    least = cache.least_free(find_shape("tiny"), work, 4)
    assert least == round((12 * 19 * 1319 + 3840 * 64 * (2 + 16)) / 0.4)
    monkeypatch.setattr("grpo.rollout.builtin.free_memory", lambda _: least + 3)
    assert Engine(load_policy("tiny")).blocks_that_fit(work.rows, 2 + 16) == 2 + 16
    monkeypatch.setattr("grpo.rollout.builtin.free_memory", lambda _: least - 3)
    with pytest.raises(GrpoError, match="memory: sampling 1319 completions"):
        Engine(load_policy("tiny")).blocks_that_fit(work.rows, 2 + 16)
    assert [work.share(ranks).rows for ranks in (1, 4, 16)] == [1319, 330, 83]
    assert replace(work, heldout=20).share(3).rows == 6 * 8, "whole groups"


def test_a_limit_of_rows_reaches_the_plan() -> None:
    """128 completions, 32 at a time, take four times as many steps; the rows' own share is the same."""
    limited = Config(system=System(max_concurrent_completions=32), prompts_per_step=16, group_size=8)
    assert options_of(limited).max_concurrent_completions == 32
    assert Work.of(limited, prompt_tokens=10).rows == 32
    shape, work = find_shape("qwen2.5-1.5b"), Work(prompts=16, group_size=8, prompt_tokens=256, new_tokens=1000)
    per_token, per_row = decoding(shape, work, SPEEDS["h200"])
    seconds = [rollout_seconds(shape, replace(work, concurrent=rows), SPEEDS["h200"]) for rows in (0, 32)]
    assert seconds[1] - seconds[0] == pytest.approx(3 * 1000 * per_token)
    assert seconds[0] > 1000 * (per_token + 128 * per_row)


def test_keys_and_values_by_hand() -> None:
    """tiny: 3 layers, 160 wide keys, 4 bytes: 3 840 bytes of keys and values a token. 2 prompts of 10 tokens once, and
    8 completions of 30, up to 0.8 of them again when finished ones leave; in bfloat16, each with its prompt's again."""
    work = Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    found = [
        memory_of(find_shape("tiny"), work, ALONE, PRECISIONS[dtype]).components["keys/values"]
        for dtype in ("float32", "bfloat16")
    ]
    assert found == [round(3840 * (20 + 1.8 * 8 * 30)), round(1920 * (20 + 1.8 * 8 * 40))]
    episodes = memory_of(find_shape("tiny"), replace(work, observed_tokens=0), ALONE, PRECISIONS["float32"])
    assert episodes.components["keys/values"] == 3840 * (20 + 3 * 8 * 30)


def test_working_copies_of_other_networks_by_hand() -> None:
    """tiny on a GPU in mixed precision: a critic has a copy like the policy's, 2 bytes a weight of a product; a
    reference is kept in 2 bytes but for 19 × 160 embeddings and 7 norms of 160, with a copy of the output layer, which
    is the embedding. A model of other blocks has no copies."""
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)

    def components(shape: Shape) -> dict[str, int]:
        everyone = Needs(reference=True, critic=True)
        return dict(memory_of(shape, work, everyone, PRECISIONS["mixed"], on_gpu=True).components)

    fused, stock = components(shape), components(replace(shape, fused=False))
    table, frozen = 19 * 160, 2 * shape.linear_parameters + 4 * (19 * 160 + 7 * 160)
    assert fused["reference"] == stock["reference"] == frozen
    assert fused["working copies"] == 2 * 2 * (shape.linear_parameters + table) + 2 * table
    assert stock["working copies"] == 0


def test_what_a_preset_needs() -> None:
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    weights = 4 * shape.parameters

    def components(loss: Loss, **options: Any) -> dict[str, int]:
        needed = needs(loss)
        return dict(memory_of(shape, work, needed, PRECISIONS["float32"], **options).components)

    grpo_needs, dr_grpo_needs = (components(PRESETS[name].settings) for name in ("grpo", "dr_grpo"))
    assert (grpo_needs["reference"], dr_grpo_needs["reference"]) == (weights, 0)
    assert [needs(replace(PRESETS["grpo"].settings, entropy=weight)).entropy for weight in (0.0, 0.1)] == [False, True]
    assert grpo_needs["critic"] == 0
    assert grpo_needs["optimizer"] == 2 * grpo_needs["gradients"] == 2 * weights
    adapted = components(PRESETS["grpo"].settings, lora=4)
    assert adapted["gradients"] == 4 * shape.adapter_parameters(4)
    assert adapted["reference"] == 0, "the same weights, without the adapters"


# Operations


def matrix_products(counter: FlopCounterMode) -> float:
    """Without attention, of which torch does not count every kernel: those of batches are its."""
    counts = counter.get_flop_counts()["Global"]
    return float(sum(count for kernel, count in counts.items() if str(kernel) in ("aten.mm", "aten.addmm")))


def test_operations_are_those_torch_counts() -> None:
    policy, work = random_policy(), Work(prompts=3, group_size=4, prompt_tokens=12, new_tokens=25)
    shape = shape_of(policy.model.config.to_dict(), "random")
    predicted = flops(shape, work, ALONE)
    # A prompt of 12 has 78 pairs of query and key; a completion of 25 sees it 25 times, and has 325 pairs of its own.
    attention = 4 * 4 * 192 * (3 * 78 + 12 * (25 * 12 + 325))
    [batch] = pack(random_groups(3, 4, 12, 25), 10_000)
    with FlopCounterMode(display=False) as counter:
        logprobs(policy, batch, 1.0, train_entropy=False)[0].sum().backward()
    assert predicted["update"] == pytest.approx(matrix_products(counter) + 3.5 * attention)
    problems = [Problem(str(i), "p" * 12, "") for i in range(3)]
    with FlopCounterMode(display=False) as counter:
        Engine(policy).sample(problems, 4, Sampling(seed=1, temperature=1.0, max_new_tokens=25))
    assert predicted["rollout"] == pytest.approx(matrix_products(counter) + attention, rel=0.01)
    # Of an episode, tokens that were read have no logits in the update: 2 · V · C forward, and twice that backward.
    read = flops(shape, replace(work, observed_tokens=10), ALONE)
    assert read["rollout"] == predicted["rollout"]
    assert predicted["update"] - read["update"] == 3 * 2 * 3000 * 192 * 12 * 10


def test_operations_of_adapters() -> None:
    """The frozen weights cost two products, not three: none for their own gradient. The first layer's queries, keys and
    values have nothing before them that learns, so theirs cost one."""
    policy, work = random_policy(), Work(prompts=3, group_size=4, prompt_tokens=12, new_tokens=25)
    adapt(policy, Lora(rank=8), seed=1)
    shape = shape_of(policy.model.config.to_dict(), "random")
    [batch] = pack(random_groups(3, 4, 12, 25), 10_000)
    with FlopCounterMode(display=False) as counter:
        logprobs(policy, batch, 1.0, train_entropy=False)[0].sum().backward()
    attention = 4 * 4 * 192 * (3 * 78 + 12 * (25 * 12 + 325))
    tokens, rank = 3 * 12 + 12 * 25, 8
    spared = 2 * tokens * (192 * (192 + 64 + 64) + 3 * rank * 192)
    predicted = flops(shape, work, ALONE, lora=rank)["update"]
    assert predicted - spared == pytest.approx(matrix_products(counter) + 3.5 * attention)


def test_a_gpus_frozen_weights_have_no_copy() -> None:
    """tiny in mixed precision, its output layer the embedding of 19 x 160, cast once. Rank 4 side by side, in each of 3
    layers: 4 x 3 rows of 160 and 480 columns of 12; 4 and 160; 8 rows of 160 and 864 columns of 8; 4 of 432 and 160."""
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    found = memory_of(shape, work, ALONE, PRECISIONS["mixed"], on_gpu=True, lora=4).components
    adapters = 3 * (12 * (160 + 480) + 4 * (160 + 160) + 8 * (160 + 864) + 4 * (432 + 160))
    assert found["working copies"] == 2 * (adapters + 19 * 160)
    frozen = 2 * shape.linear_parameters + 4 * (shape.parameters - shape.linear_parameters)
    assert found["weights"] == frozen + 4 * shape.adapter_parameters(4)


def test_operations_besides_the_policys() -> None:
    shape, work = find_shape("tiny"), Work(prompts=2, group_size=4, prompt_tokens=10, new_tokens=30)
    alone, both = (flops(shape, work, Needs(reference=needed, critic=needed)) for needed in (False, True))
    assert alone["reference"] == alone["critic"] == alone["old policy"] == 0
    head = 2 * 240 * 19 * 160  # 240 trained tokens, 19 words, 160 wide
    assert both["reference"] - both["critic"] == head
    assert both["update"] > 1.9 * alone["update"]
    assert flops(shape, replace(work, epochs=2), ALONE)["update"] == 2 * alone["update"]


# The command


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_recomputation_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """A block then keeps nothing but its input: of a 1.5B model's 16,384 tokens, far less than half."""
    kept, forgotten = (
        planned(capsys, "qwen2.5-1.5b", "--algorithm", "dr_grpo", *more)["algorithms"][0]
        for more in ((), ("--gradient-checkpointing",))
    )
    assert forgotten["memory"]["activations"] < 0.2 * kept["memory"]["activations"]
    assert forgotten["peak"] < kept["peak"]


def test_seven_billion_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--params", "7B", "--algorithm", "grpo,dr_grpo", "--dtype", "bfloat16", "--gpu", "h200")
    with_reference, without = found["algorithms"]
    weights = 2 * found["parameters"]
    assert weights == pytest.approx(14e9, rel=0.01)
    assert with_reference["memory"]["optimizer"] == 2 * weights
    assert with_reference["peak"] - without["peak"] == weights, "the reference"
    assert found["gpu"]["bytes"] == 141 * GIB
    assert with_reference["fits"] == (with_reference["peak"] <= 0.93 * 141 * GIB)


def test_a_recipe_says_what_its_algorithm_needs_and_flags_go_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('model = "smollm2"\nmax_new_tokens = 64\n[loss]\nbeta = 0.0\n')
    [anchored] = planned(capsys, "smollm2", "--algorithm", "grpo", "--max-new-tokens", "64")["algorithms"]
    ours = planned(capsys, str(recipe))
    assert ours["parameters"] == 134_515_008
    assert ours["work"]["new_tokens"] == 64
    assert (anchored["memory"]["reference"] > 0, ours["algorithms"][0]["memory"]["reference"]) == (True, 0)
    assert ours["warnings"] == []
    recipe.write_text('model = "smollm2"\n[lora]\nrank = 8\ntargets = "q_proj"\n')
    assert planned(capsys, str(recipe))["warnings"][0].startswith("lora.targets (q_proj) is not counted: this plan has")
    longer = planned(capsys, str(recipe), "--max-new-tokens", "128", "--algorithm", "ppo")
    assert (longer["work"]["new_tokens"], longer["algorithms"][0]["algorithm"]) == (128, "ppo")


@pytest.mark.parametrize("asked", ["--params 7B --gpu h200", "qwen2.5-1.5b --dtype bfloat16 --gpu 4090"])
def test_what_is_advised_fits(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, *asked.split())
    tight = [row for row in found["algorithms"] if not row["fits"]]
    assert tight
    for row in tight:
        _, flags = row["advice"].split("fits with ")
        [again] = planned(capsys, *asked.split(), "--algorithm", row["algorithm"], *flags.split())["algorithms"]
        assert again["fits"], (row["algorithm"], flags)
        assert again["advice"] == ""


def test_rows_of_a_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    """16 × 8 completions. Without a named GPU all run at once; a small one holds a part of them."""
    [row] = planned(capsys, "smollm2", "--algorithm", "grpo", "--mean-new-tokens", "1024")["algorithms"]
    assert row["cache_blocks"] == 16 * 4 + 128 * 16
    found = row["rollout"]
    assert (found["most_rows"], found["mean_rows"], found["steps"], found["dropped"]) == (128, 128, 1023, 0)
    assert found["tokens"] == 128 * 1024
    [half] = planned(capsys, "smollm2", "--algorithm", "grpo")["algorithms"]
    assert half["rollout"]["mean_new_tokens"] == 512
    assert half["rollout"]["most_rows"] == 128
    assert half["rollout"]["mean_rows"] == pytest.approx(64, abs=8)
    [small] = planned(capsys, "smollm2", "--algorithm", "grpo", "--gpu", "4 GB")["algorithms"]
    assert small["cache_blocks"] < row["cache_blocks"]
    assert small["rollout"]["most_rows"] < 128
    limited = "--max-concurrent-completions", "20", "--mean-new-tokens", "1024"
    [few] = planned(capsys, "smollm2", "--algorithm", "grpo", *limited)["algorithms"]
    assert few["cache_blocks"] == 16 * 4 + 20 * 16
    assert (few["rollout"]["most_rows"], few["rollout"]["dropped"]) == (20, 0)
    assert few["rollout"]["steps"] > 128 / 20 * 1023
    assert few["peak"] < row["peak"]
    [shared] = planned(capsys, "smollm2", "--algorithm", "grpo", "--gpus", "4")["algorithms"]
    assert shared["rollout"]["most_rows"] == 32, "of each GPU"
    [cpu] = planned(capsys, "smollm2", "--algorithm", "grpo", "--device", "cpu")["algorithms"]
    assert cpu["rollout"] is None
    [read] = planned(capsys, "smollm2", "--algorithm", "grpo", "--observation-tokens", "300")["algorithms"]
    assert read["rollout"] == half["rollout"], "rows are as long, whoever wrote their tokens"
    assert read["flops"]["update"] < half["flops"]["update"]
    assert main(["plan", "smollm2", "--algorithm", "grpo,dr_grpo", "--mean-new-tokens", "1024"]) == 0
    printed = capsys.readouterr().out
    assert "completions of 1024 tokens on average (geometric, at most 1024)" in printed
    assert "grpo, dr_grpo: KV cache of 2112 blocks" in printed
    assert "at most 128 rows at once, 128 on average; no row dropped" in printed


def test_advice_that_would_not_help_is_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = planned(capsys, "--params", "70B", "--gpu", "h100", "--algorithm", "grpo")["algorithms"]
    assert row["advice"] == "choose a smaller model, or shorter completions"


def test_the_table_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen2.5-1.5b", "--algorithm", "grpo", "--gpu", "4090"]) == 0
    printed = capsys.readouterr().out
    for fragment in ("1.54 billion", "weights", "keys/values", "peak", "rollout", "4090 has 24 GiB", "grpo lacks"):
        assert fragment in printed
    assert main(["plan", "nano", "--algorithm", "grpo", "--gpu", "24 GB"]) == 0
    assert "grpo would fit." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ([], ("field model", "--params 7B")),
        (["nano", "--params", "7B"], ("field model", "not both")),
        (["qwen2.5-15b"], ("field model", 'did you mean "qwen2.5-1.5b"')),
        (["--params", "seven"], ("field params", "135M, 7B or 70B")),
        (["--params", "7B", "--gpu", "h20"], ("field gpu", 'did you mean "h200"')),
        (["nano", "--algorithm", "grop"], ("field algorithm", 'did you mean "grpo"')),
        (["nano", "--group-size", "0"], ("field group_size", "at least 1")),
        (["nano", "--max-concurrent-completions", "-1"], ("field max_concurrent_completions", "at least 0")),
        (["7B", "--mean-new-tokens", "2000"], ("field mean_new_tokens", "at most max_new_tokens, 1024")),
        (["7B", "--observation-tokens", "1024"], ("field observation_tokens", "less than max_new_tokens, 1024")),
        (
            ["guess", "--max-new-tokens", "128"],
            ("field max_new_tokens", "the 128 positions of guess", "lower max_new_"),
        ),
        (
            ["guess", "--prompt-tokens", "128"],
            ("field max_new_tokens", "128 positions of guess", "lower prompt_tokens"),
        ),
        (["nano", "--algorithm", "rloo", "--group-size", "1"], ("field group_size", "at least 2", "algorithm rloo")),
        (["nano", "--minibatches", "40"], ("field minibatches", "at most prompts_per_step, 16", "got 40")),
        (["7B", "--reward-model", "foo"], ("field reward_model: no shape",)),
        (["7B", "--reward-model", "./foo"], ("field reward_model: unknown model",)),
        (["7B", "--reward-model", "."], ("field reward_model", "no config.json")),
        (["."], ("field model", "no config.json")),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], fragments: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["plan", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert all(fragment in line for fragment in fragments), line


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("num_attention_heads", 0), ("num_hidden_layers", 0), ("num_hidden_layers", -2), ("head_dim", 0)),
        *(("num_key_value_heads", 0), ("vocab_size", "many"), ("hidden_size", True), ("model_type", 5)),
    ],
)
def test_a_damaged_config_is_one_line(
    field: str, value: object, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = json.loads((Path(locate_model("nano")) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    assert main(["plan", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo: field model: config.json of {tmp_path}: {field} must be "), line
    assert f"got {json.dumps(value)}" in line


def test_lengths_that_are_not_given_fit_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    def lengths(*arguments: str) -> tuple[int, int]:
        work = planned(capsys, *arguments, "--algorithm", "grpo")["work"]
        return work["prompt_tokens"], work["new_tokens"]

    assert lengths("7B") == (256, 1024)
    assert lengths("nano") == (64, 64)
    assert lengths("nano", "--max-new-tokens", "127") == (1, 127)
    assert lengths("nano", "--prompt-tokens", "100") == (100, 28)


def test_algorithms_that_cannot_be_trained_so_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "nano", "--group-size", "1")
    assert [row["algorithm"] for row in found["algorithms"]] == ["reinforce", "ppo"]
    assert "rloo left out: group_size must be at least 2" in " ".join(found["warnings"])


def test_gpus() -> None:
    assert [gpu_memory(name) // GIB for name in ("RTX 4090", "A100-80GB", "12GB", "80 GiB")] == [24, 80, 12, 80]
    with pytest.raises(GrpoError, match="no GPU"):
        gpu_memory("0 GB")


# Before a run


@pytest.fixture
def seven_billion(tmp_path: Path) -> str:
    """A folder with nothing but the config of a 7 B model: were it loaded, the missing weights would be the error."""
    config = transformers.Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28
    )
    config.save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_model_too_large_is_refused_before_loading(seven_billion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: 24 * 10**9)
    with pytest.raises(GrpoError, match=r"takes about \d+\.\d GB, and 24.0 GB are free on cpu"):
        grpo.train(Config(model=seven_billion, task="arithmetic", system=System(device="cpu")))


def test_what_is_advised_has_an_effect(seven_billion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: 24 * 10**9)

    def refused(device: str, dtype: Any, recompute: bool = False) -> str:
        system = System(dtype=dtype, gradient_checkpointing=recompute)
        with pytest.raises(GrpoError, match="lower prompts_per_step or max_new_tokens, ") as caught:
            check_memory(Config(model=seven_billion, system=system), load_task("arithmetic"), torch.device(device))
        return str(caught.value)

    recomputation = "turn on system.gradient_checkpointing, or choose a smaller model"
    assert recomputation in refused("cuda", "bfloat16")
    for where in (("cpu", "bfloat16"), ("cuda", "float32"), ("cuda", "bfloat16", True)):
        assert recomputation not in refused(*where)


def test_too_many_rows_for_the_memory_beside_the_weights_are_refused_before_loading(
    seven_billion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16,000 rows of 152,064 logits of 12 bytes are 29 GB, and a KV cache may take 40% of 80 - 15.5 GB."""
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: 80 * 10**9)
    config = Config(
        model=seven_billion,
        prompts_per_step=1000,
        group_size=16,
        lora=Lora(rank=8),
        loss=Loss(beta=0.0),
        system=System(dtype="bfloat16"),
    )
    refused = (
        r"takes about \d+\.\d GB, and 80\.0 GB are free on cuda; lower prompts_per_step, evaluation.problems or "
        r"max_new_tokens, set system.max_concurrent_completions, or choose a smaller model \(see grpo plan\)"
    )
    with pytest.raises(GrpoError, match=refused):
        check_memory(config, load_task("arithmetic"), torch.device("cuda"))
    fewer = replace(config, system=replace(config.system, max_concurrent_completions=8000))
    assert check_memory(fewer, load_task("arithmetic"), torch.device("cuda")).predicted


def test_no_more_held_out_problems_are_counted_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: 10**9)
    task, device = load_task("arithmetic"), torch.device("cpu")
    there = len(task.heldout())
    sizes = [
        check_memory(Config(model="nano", evaluation=Evaluation(problems=problems)), task, device)
        for problems in (there, 10**6)
    ]
    assert sizes[0] == sizes[1]


def test_too_few_positions_are_refused_before_memory() -> None:
    asked = Config(model="nano", steps=1, max_new_tokens=100_000, system=System(device="cpu"))
    with pytest.raises(GrpoError, match=r"max_new_tokens: 100000 new tokens leave no room .* 128 positions of nano"):
        grpo.train(asked)


def test_a_run_picks_the_first_mode_that_fits(
    seven_billion: str, rank_0_of_4: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.8 billion weights in mixed precision on four ranks, without a reference; micro-batches of 16,384 tokens."""
    task, device, free = load_task("arithmetic"), torch.device("cuda"), 0  # nothing is loaded onto it
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: free)

    def settings(shard: Any) -> Config:
        system = System(token_budget=16384)
        return Config(model=seven_billion, loss=Loss(beta=0.0), system=system, scale=Scale(shard=shard))

    needed: dict[Shard, int] = {}
    for shard in SHARDS:
        free = 10**13
        found = check_memory(settings(shard), task, device, rank_0_of_4)
        assert (found.shard, found.token_budget) == (shard, 16384)
        needed[shard] = found.predicted or 0
    for shard, bytes_needed in needed.items():
        free = round(bytes_needed / SHARE_OF_FREE) + 1
        assert check_memory(settings("auto"), task, device, rank_0_of_4).shard == shard
    free = needed["none"] - 1
    refused = r"field scale.shard: none takes about .* on each of 4 ranks, and .* are free; use optimizer"
    with pytest.raises(GrpoError, match=refused):
        check_memory(settings("none"), task, device, rank_0_of_4)
    free = 10**13
    assert check_memory(settings("weights"), task, device).shard == "none", "one rank has nobody to share with"


def test_fine_tuning_picks_the_first_mode_that_fits(
    seven_billion: str, rank_0_of_4: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes per weight on four ranks: 4 + 2 + 4 + 8 = 18 replicated, 4 + 2 + 4 + 8/4 = 12 with moments sharded. Short
    rows and the bucket of gradients add less than 2%; nothing is sampled, so there is no KV cache."""
    weights, free = find_shape(seven_billion).parameters, 0
    monkeypatch.setattr("grpo.training.memory_check.free_memory", lambda _: free)
    rows = [Problem("p", "2+3=", "5")] * 64

    def picked(bytes_per_weight: float, **changes: Any) -> Shard:
        nonlocal free
        free = round(bytes_per_weight * weights / SHARE_OF_FREE)
        config = SftConfig(model=seven_billion, data="rows.jsonl", batch_size=64, **changes)
        return sft_shard(config, rows, torch.device("cuda"), rank_0_of_4)

    assert [picked(each) for each in (1.02 * 18, 0.98 * 18, 1.02 * 12, 0.98 * 12, 1)] == [
        *("none", "optimizer", "optimizer", "weights", "weights")
    ]
    assert picked(1.02 * 18, scale=Scale(shard="weights")) == "weights"
    assert picked(3, lora=Lora(rank=4)) == "none"
    with pytest.raises(GrpoError, match=r"field scale.shard: none takes about .* on each of 4 ranks"):
        picked(12, scale=Scale(shard="none"))
    assert sft_shard(SftConfig(model=seven_billion), rows, torch.device("cuda"), WORLD_OF_ONE) == "none"


def test_a_run_records_predicted_and_measured(tmp_path: Path) -> None:
    settings = Config(
        model="nano", steps=2, prompts_per_step=2, group_size=4, system=System(runs=str(tmp_path), device="cpu")
    )
    with grpo.train(settings) as run:
        about, peaks = run.meta("memory"), run.series("peak_memory")
    assert about["device"] == "cpu"
    shape = find_shape("nano")
    assert 4 * 4 * shape.parameters < about["predicted"] < 2**30
    assert len(peaks) == 2
    assert peaks[-1][1] > 50e6, "Python and torch alone take more"
