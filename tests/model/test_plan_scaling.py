"""Plans of several GPUs: memory by mode, rings and collectives by hand, seconds against what was measured."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from grpo.cli.main import main
from grpo.distributed import buckets
from grpo.errors import GrpoError
from grpo.model.lora import narrow_layers
from grpo.model.plan import PRECISIONS, SHAPES, Needs, Work, find_shape, memory_of
from grpo.model.plan.gpus import GPUS, SPEEDS
from grpo.model.plan.links import Cluster, sent
from grpo.model.plan.scaling import (
    PICKLED,
    Run,
    collectives,
    curve,
    group_bytes,
    predicted_step,
    published_bytes,
    reduced_bytes,
)
from grpo.model.plan.seconds import decoding, rollout_seconds, seconds_of
from grpo.model.plan.shard import ALIGNMENT, BUCKET, Shard, padded, pick_shard, refuse_shard
from grpo.types import Completion, Group, Problem

ALONE = Needs(reference=False, critic=False)
H200 = SPEEDS["h200"]
MIXED = PRECISIONS["mixed"]
WORK = Work(prompts=16, group_size=8, prompt_tokens=256, new_tokens=1024)
SEVEN = SHAPES["qwen2.5-7b"]
MODES: tuple[Shard, ...] = ("none", "optimizer", "weights")


# Memory by mode


@pytest.mark.parametrize("shard", MODES)
def test_modes_by_hand(shard: Shard) -> None:
    """tiny in mixed precision on 8 GPUs: linear layers, an embedding of 19 × 160, which is the output layer too, and 7
    norms of 160."""
    shape, work = find_shape("tiny"), Work(prompts=16, group_size=4, prompt_tokens=10, new_tokens=30)
    found = memory_of(shape, work, ALONE, MIXED, on_gpu=True, shard=shard, ranks=8)
    P, linear, rest = shape.parameters, shape.linear_parameters, 19 * 160 + 7 * 160
    assert linear + rest == P
    weights, optimizer, copies, bucket = {
        "none": (4 * P, 8 * P, 2 * (linear + 19 * 160), 4 * P),
        "optimizer": (4 * P, P, 2 * (linear + 19 * 160), 4 * P),
        "weights": (2 * linear + 4 * rest, P + linear // 2, 2 * 19 * 160, 4 * linear),
    }[shard]
    parts = found.components
    assert (parts["weights"], parts["optimizer"], parts["working copies"]) == (weights, optimizer, copies)
    assert (parts["gradients"], parts["bucket"]) == (4 * P, bucket), "fewer gradients than a bucket holds"
    # A block of 64 tokens for each of the 2 prompts and 8 completions of a rank, and a spare one.
    assert parts["keys/values"] == 1920 * 64 * (2 + 8 + 1) + 12 * 8 * 30
    resident = weights + optimizer + copies + parts["keys/values"]
    assert found.phases["reduce"] == resident + 4 * P + bucket


@pytest.mark.parametrize(("shard", "each"), [("none", 18), ("optimizer", 11), ("weights", 7.5)])
def test_seven_billion_on_eight_gpus(shard: Shard, each: float) -> None:
    """Bytes a parameter: weights, working copy, gradient, and masters and moments; up to what embeddings and biases add
    or spare, which stay in float32 and have no copy."""
    parts = memory_of(SEVEN, WORK, ALONE, MIXED, on_gpu=True, shard=shard, ranks=8).components
    held = sum(parts[name] for name in ("weights", "working copies", "gradients", "optimizer"))
    extra = {"none": -2, "optimizer": -2, "weights": 1.5}[shard]
    assert held == pytest.approx(each * SEVEN.parameters + extra * SEVEN.embedding, rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "lora"), [("float32", 0), ("bfloat16", 0), ("mixed", 16)], ids=["float32", "bfloat16", "lora"]
)
def test_b_is_a_where_nothing_is_narrower(dtype: str, lora: int) -> None:
    peaks = [
        memory_of(SEVEN, WORK, ALONE, PRECISIONS[dtype], on_gpu=True, lora=lora, shard=shard, ranks=4).components
        for shard in ("none", "optimizer", "weights")
    ]
    assert peaks[1] == peaks[2]
    assert peaks[0]["optimizer"] == pytest.approx(4 * peaks[1]["optimizer"], abs=4)


def test_one_rank_is_planned_as_before() -> None:
    plain = memory_of(SEVEN, WORK, ALONE, MIXED, on_gpu=True)
    assert plain.components["bucket"] == 0
    assert "reduce" not in plain.phases
    both = Needs(reference=True, critic=True)
    critics = [memory_of(SEVEN, WORK, both, MIXED, on_gpu=True, shard=s, ranks=8).components["critic"] for s in MODES]
    # 4 + 4 + 8; its output layer has no gradient and no moments, but weights.
    assert critics[0] == 4 * SEVEN.parameters + 12 * SEVEN.body
    assert critics[1] == 4 * SEVEN.parameters + 5 * SEVEN.body


def test_stock_blocks_do_not_cast_what_is_narrow() -> None:
    """Autocast keeps a 16-bit copy of every weight it multiplies with; layers held in 16 bits need none."""
    shape = replace(find_shape("tiny"), fused=False)
    kept = [
        memory_of(shape, WORK, ALONE, MIXED, on_gpu=True, shard=s, ranks=2).components["activations"] for s in MODES
    ]
    assert kept[0] == kept[1] == kept[2] + 2 * shape.linear_parameters


def test_the_first_mode_that_fits() -> None:
    def peak(shard: Shard) -> int:
        return memory_of(SEVEN, WORK, ALONE, MIXED, on_gpu=True, shard=shard, ranks=8).peak

    sizes = [peak(shard) for shard in MODES]
    assert sizes == sorted(sizes, reverse=True)
    assert [pick_shard(peak, size, 8) for size in sizes] == list(MODES)
    assert pick_shard(peak, sizes[2] - 1, 8) is None
    assert pick_shard(peak, sizes[2], 1) is None, "one rank has nobody to share with"
    refused = str(refuse_shard("none", peak, sizes[1], 8))
    assert refused.startswith("field scale.shard: none takes about ")
    assert "on each of 8 ranks" in refused
    assert "use optimizer (see grpo plan)" in refused
    assert "no mode fits" in str(refuse_shard("none", peak, 1.0, 8))


@pytest.mark.parametrize("budget", [16384, 8448, 4096])
def test_completions_that_end_early_fill_the_budget(budget: int) -> None:
    """Two of 256 + 8192 tokens do not fit 16,384, but shorter ones do; a longer one than the budget is alone."""
    work = Work(prompts=8, group_size=8, prompt_tokens=256, new_tokens=8192, token_budget=budget)
    short = Work(prompts=512, group_size=8, prompt_tokens=256, new_tokens=2, token_budget=budget)
    planned, even = (memory_of(SEVEN, each, ALONE, MIXED, on_gpu=True, lora=32) for each in (work, short))
    kept = 28 * (4 * 3584 + 2 * 4608 + 2 * 3584 + 4 * 28 + 4 * 3584 + 8 + 4 * 18944) + 6 * 3584
    tokens = max(budget, 8448)
    assert planned.components["activations"] == tokens * kept + 2 * 3584 * (tokens - 256)
    assert even.components["activations"] <= budget * (kept + 2 * 3584)


# Rings and collectives


def test_rings_by_hand() -> None:
    """8 ranks, 800 bytes: a piece of 100 travels 7 times to be summed, and 7 times to be known."""
    assert sent("reduce_scatter", 800, 8) == sent("all_gather", 800, 8) == 700
    assert sent("all_reduce", 800, 8) == 1400
    assert [sent("all_reduce", 800, n) for n in (1, 2)] == [0, 800]


def test_links() -> None:
    assert Cluster.read(8, 1, "") == Cluster(8, 1, "nvlink", "400gbit")
    assert Cluster.read(8, 2, "pcie,1gbit") == Cluster.read(8, 2, "1gbit,pcie") == Cluster(8, 2, "pcie", "1gbit")
    assert Cluster.read(8, 2, "1gbit") == Cluster(8, 2, "nvlink", "1gbit")
    assert Cluster.read(8, 1, "1gbit").slowest(8) == "1gbit", "any link may join the GPUs of one node"
    assert Cluster.read(1, 4, "nvlink").slowest(4) == "400gbit"
    wide = Cluster.read(8, 2, "pcie,400gbit")
    assert (wide.slowest(8), wide.slowest(16)) == ("pcie", "pcie"), "a ring is as fast as its slowest link"
    for link in ("ethernet", "nvlink,pcie"):
        with pytest.raises(GrpoError, match="field link"):
            Cluster.read(8, 2, link)
    assert set(SPEEDS) == set(GPUS)


def test_groups_are_as_large_as_when_pickled() -> None:
    rng = np.random.default_rng(0)

    def groups(work: Work, annotated: bool) -> list[Group]:
        def completion() -> Completion:
            values = rng.random(work.new_tokens).astype(np.float32)
            tokens, text = (
                rng.integers(0, 50_000, work.new_tokens),
                "".join(rng.choice(["abc ", "xyz "], work.new_tokens)),
            )
            ref = values + 1 if annotated else None
            done = Completion(text, tokens, values, "stop", parts={"correct": 1.0}, reward=1.0, correct=True)
            return replace(done, ref_logprobs=ref)

        return [
            Group(
                Problem(f"{place:064d}", "abc " * work.prompt_tokens, "42"),
                rng.integers(0, 50_000, work.prompt_tokens),
                tuple(completion() for _ in range(work.group_size)),
                0,
            )
            for place in range(work.prompts)
        ]

    for work in (WORK, replace(WORK, prompts=32, new_tokens=64)):
        for reference in (False, True):
            needs = Needs(reference=reference, critic=False)
            predicted = group_bytes(Run(shape=SEVEN, work=work, needs=needs, precision=MIXED))
            assert predicted == pytest.approx(len(pickle.dumps(groups(work, reference), protocol=5)), rel=0.05)


def test_collectives_by_hand() -> None:
    """7.6B, 8 GPUs over NVLink at 350 GB/s, 16 × 8 completions. Replicated: 7/4 of 4 bytes a parameter. A: 7/8 of 4
    bytes, then 7/8 of 4 bytes. B: the second has 2 bytes for linear layers and the output layer, 4 for the rest."""
    run, cluster = Run(shape=SEVEN, work=WORK, needs=ALONE, precision=MIXED), Cluster(8)
    P, wide = SEVEN.parameters, SEVEN.parameters - SEVEN.linear_parameters - SEVEN.embedding
    expected = {
        "none": (7 * P, 0),
        "optimizer": (3.5 * P, 3.5 * P),
        "weights": (3.5 * P, 7 / 8 * (2 * (P - wide) + 4 * wide)),
    }
    for shard, (reduced, published) in expected.items():
        groups, gradient, weights = collectives(run, shard, cluster, 8)
        assert gradient.sent == pytest.approx(reduced, rel=1e-6)
        assert weights.sent == pytest.approx(published, rel=1e-6)
        assert gradient.seconds == pytest.approx(reduced / 350e9, rel=1e-6)
        assert groups.size == 16 * 256 * 12 + 128 * (190 + 16 * 1024)
        assert groups.seconds == groups.size / PICKLED, "inside a node only packing counts"
    assert collectives(run, "none", cluster, 1) == []
    twice = replace(run, work=replace(WORK, minibatches=2))
    assert collectives(twice, "none", cluster, 8)[1].sent == 2 * collectives(run, "none", cluster, 8)[1].sent
    # Groups travel again with advantages and old log-probabilities, or once with the latter beside the reference's.
    tokens = 128 * 1024
    assert collectives(twice, "none", cluster, 8)[0].size == 2 * (16 * 256 * 12 + 128 * 190 + 16 * tokens) + 8 * tokens
    anchored = replace(twice, needs=Needs(reference=True, critic=False))
    assert collectives(anchored, "none", cluster, 8)[0].size == 16 * 256 * 12 + 128 * 190 + 24 * tokens
    # With LoRA only adapters travel, in float32.
    adapted = collectives(replace(run, lora=16), "none", cluster, 8)[1]
    assert adapted.size == 4 * padded(SEVEN.adapter_parameters(16), 8)
    with_critic = replace(run, needs=Needs(reference=False, critic=True))
    assert collectives(with_critic, "none", cluster, 8)[1].size == 4 * (padded(P, 8) + padded(SEVEN.body, 8))


def test_shards_of_a_thousand_ranks_cover_every_weight() -> None:
    """In each bucket the intervals are multiples of 8, so less than 8 elements a rank are padding."""
    for ranks in (3, 8, 1000, 1024):
        extra = padded(SEVEN.parameters, ranks) - SEVEN.parameters
        assert padded(SEVEN.parameters, ranks) % ranks == 0
        assert 0 <= extra < 8 * ranks * -(-SEVEN.parameters // BUCKET)
    assert padded(BUCKET, 1024) == BUCKET


@pytest.mark.parametrize("ranks", [8, 1024])
@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-1.5b"])
def test_bytes_are_those_of_the_buckets(name: str, ranks: int) -> None:
    """The weights of transformers' own model, laid out as the trainer lays them out."""
    shape = SHAPES[name]
    config = transformers.Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = list(model.parameters())
    narrow = {layer.weight for layer in narrow_layers(model)}
    run = Run(shape=shape, work=WORK, needs=ALONE, precision=MIXED)
    for shard in MODES:
        held = narrow if shard == "weights" else set()
        dtypes = [torch.bfloat16 if weight in held else torch.float32 for weight in weights]
        laid_out = buckets.make_buckets([weight.numel() for weight in weights], dtypes, ranks)
        assert reduced_bytes(run, shape.parameters, shard, ranks) == buckets.reduced_bytes(laid_out)
        if shard != "none":
            assert published_bytes(run, shape.parameters, shard, ranks) == buckets.gathered_bytes(laid_out)
    assert (BUCKET, ALIGNMENT) == (buckets.BUCKET, buckets.ALIGNMENT)


# Seconds, against benchmarks/results.md

ROLLOUTS = [
    ("smollm2-135m", 64, 16, 64, 128, 0.31),
    ("qwen2.5-0.5b", 64, 8, 256, 512, 1.34),
    ("qwen2.5-1.5b", 64, 8, 256, 640, 3.52),
    ("qwen2.5-7b", 32, 8, 256, 1024, 11.5),
    ("smollm2-135m", 64, 16, 64, 128, 64 * 16 * 128 / 469_961),
    ("qwen2.5-1.5b", 32, 16, 128, 512, 32 * 16 * 512 / 104_645),
    ("qwen2.5-1.5b", 16, 16, 1024, 256, 16 * 16 * 256 / 75_027),
]
UPDATES = [
    ("smollm2-135m", 64, 16, 64, 128, 0, 0.421),
    ("smollm2-135m", 64, 16, 40, 47, 0, 0.175),
    ("qwen2.5-0.5b", 64, 8, 256, 512, 0, 2.080),
    ("qwen2.5-1.5b", 64, 8, 256, 640, 0, 6.485),
    ("qwen2.5-1.5b", 32, 16, 128, 512, 0, 5.048),
    ("qwen2.5-1.5b", 16, 16, 1024, 256, 0, 1.608),
    ("qwen2.5-1.5b", 16, 8, 256, 4096, 0, 11.751),
    ("qwen2.5-7b", 1, 8, 256, 8192, 32, 4.970),
]


@pytest.mark.parametrize(("name", "prompts", "group", "prompt", "new", "measured"), ROLLOUTS)
def test_rollouts_as_measured(name: str, prompts: int, group: int, prompt: int, new: int, measured: float) -> None:
    work = Work(prompts=prompts, group_size=group, prompt_tokens=prompt, new_tokens=new)
    assert rollout_seconds(SHAPES[name], work, H200) == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize(("name", "prompts", "group", "prompt", "new", "lora", "measured"), UPDATES)
def test_updates_as_measured(
    name: str, prompts: int, group: int, prompt: int, new: int, lora: int, measured: float
) -> None:
    work = Work(prompts=prompts, group_size=group, prompt_tokens=prompt, new_tokens=new)
    assert seconds_of(SHAPES[name], work, ALONE, H200, lora=lora)["update"] == pytest.approx(measured, rel=0.07)


def test_an_update_with_its_reference_as_measured() -> None:
    """The recipe of Qwen2.5-7B with LoRA: the GPU computes the reference's log-probabilities before the update."""
    work, reference = Work(prompts=32, group_size=8, prompt_tokens=256, new_tokens=1024), replace(ALONE, reference=True)
    found = seconds_of(SEVEN, work, reference, H200, lora=32)
    assert found["score"] + found["update"] == pytest.approx(23.8, rel=0.07)


def test_decoded_tokens_as_measured() -> None:
    """benchmarks/decode.py, SmolLM2-135M in the middle of 128 tokens, rows of 16 a prompt: a token costs a + b·rows."""
    work = Work(prompts=64, group_size=16, prompt_tokens=64, new_tokens=128)
    every, row = decoding(SHAPES["smollm2-135m"], work, H200)
    measured = {8: 0.88, 32: 0.91, 64: 0.96, 128: 1.02, 256: 1.15, 512: 1.56, 1024: 2.20}
    for rows, milliseconds in measured.items():
        assert 1e3 * (every + row * rows) == pytest.approx(milliseconds, rel=0.07)


def test_strong_and_weak_scaling() -> None:
    """The same 64 × 16 completions on eight GPUs: a rollout 2.2 times faster, not 8. As many for each: as fast as one,
    less what is exchanged."""
    work = Work(prompts=64, group_size=16, prompt_tokens=64, new_tokens=128)
    run = Run(shape=SHAPES["smollm2-135m"], work=work, needs=ALONE, precision=MIXED)
    strong, weak = (curve(run, Cluster(8), weak=weak) for weak in (False, True))
    assert [row["gpus"] for row in strong] == [1, 2, 4, 8]
    assert strong[0]["phases"]["rollout"] / strong[-1]["phases"]["rollout"] == pytest.approx(2.2, abs=0.1)
    assert strong[0]["phases"]["update"] / strong[-1]["phases"]["update"] == pytest.approx(8, rel=0.01)
    assert strong[-1]["efficiency"] == pytest.approx(strong[0]["seconds"] / strong[-1]["seconds"] / 8)
    assert [row["prompts"] for row in weak] == [64, 128, 256, 512]
    assert weak[-1]["phases"]["rollout"] == weak[0]["phases"]["rollout"]
    assert weak[-1]["seconds"] - weak[0]["seconds"] == pytest.approx(weak[-1]["phases"]["exchange"])
    efficiencies = [[row["efficiency"] for row in rows] for rows in (strong, weak)]
    assert all(each == sorted(each, reverse=True) and each[0] == 1 for each in efficiencies)
    assert predicted_step(run, Cluster(96), 96)["idle"] == 32


# The command


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_thousand_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        capsys, "qwen2.5-7b", "--algorithm", "dr_grpo", "--gpus", "1024", "--gpu", "h200", "--shard", "weights"
    )
    [row] = found["algorithms"]
    scale, shape = row["scale"], SEVEN
    assert (found["cluster"]["ranks"], scale["shard"]) == (1024, "weights")
    masters = 8 * shape.parameters + 4 * (shape.linear_parameters + shape.embedding)
    assert scale["modes"]["weights"]["memory"]["optimizer"] == -(-masters // 1024)
    _, gradient, weights = scale["step"]["collectives"]
    narrow = shape.linear_parameters + shape.embedding
    assert gradient["size"] == 4 * (padded(narrow, 1024) + padded(shape.parameters - narrow, 1024))
    assert weights["sent"] == weights["size"] * 1023 // 1024
    assert [each["gpus"] for each in scale["strong"]] == [2**power for power in range(11)]
    assert scale["step"]["idle"] == 1008
    assert row["peak"] == scale["modes"]["weights"]["peak"]


def test_the_mode_is_picked_for_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("qwen2.5-7b", "--algorithm", "dr_grpo", "--gpus", "8", "--token-budget", "4096")
    for gpu, shard in (("mi300x", "none"), ("100 GB", "optimizer"), ("80 GB", "weights")):
        [row] = planned(capsys, *asked, "--gpu", gpu)["algorithms"]
        assert row["scale"]["shard"] == shard
        assert row["fits"]
        assert row["peak"] == row["scale"]["modes"][shard]["peak"]
    [small] = planned(capsys, *asked, "--gpu", "24 GB")["algorithms"]
    assert (small["fits"], small["scale"]["shard"]) == (False, "weights")
    [one] = planned(capsys, "qwen2.5-7b", "--algorithm", "dr_grpo")["algorithms"]
    assert one["scale"] is None


def test_the_tables_say_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "qwen2.5-1.5b --algorithm grpo --gpu 24GB --gpus 8 --nodes 3 --link pcie,1gbit"
    assert main(["plan", *arguments.split()]) == 0
    printed = capsys.readouterr().out
    for fragment in (
        "GiB at most, on each GPU",
        "24 GPUs, 3 nodes of 8. Everything below is predicted.",
        "A: moments sharded (optimizer)",
        "gradient reduced",
        "weights published",
        "Strong scaling, grpo: 16 prompts",
        "Weak scaling, grpo: 16 prompts for each GPU",
        "1gbit: assumed 0.11 GB/s",
        "NCCL, NVLink and networks were not measured.",
        "8 of 24 ranks have no prompt",
    ):
        assert fragment in printed, fragment
    assert all(len(line) <= 80 for line in printed.splitlines() if line.endswith(" ")), "tables fit a terminal"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ("--gpus 0", ("field gpus", "at least 1")),
        ("--nodes 0", ("field nodes", "at least 1")),
        ("--gpus 2 --link wifi", ("field link", 'no link is named "wifi"', "nvlink, pcie, 400gbit, 1gbit")),
        ("--gpus 2 --link nvlink,pcie", ("field link", "nvlink,400gbit")),
        ("--gpus 2 --device cpu", ("field device", "--device gpu")),
        ("--gpus 2 --shard all", ("field shard", "weights")),
    ],
)
def test_mistakes_are_one_line(arguments: str, fragments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nano", *arguments.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert all(fragment in line for fragment in fragments), line


def test_a_recipe_says_how_many_gpus(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "wide.toml"
    recipe.write_text(
        'model = "smollm2"\n[scale]\ngpus = 4\nnodes = 2\nshard = "optimizer"\n[system]\ndevice = "cuda"\n'
    )
    found = planned(capsys, str(recipe))
    assert found["cluster"]["ranks"] == 8
    assert found["algorithms"][0]["scale"]["shard"] == "optimizer"
