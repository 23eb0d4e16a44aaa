"""LoRA: peft's own forward and gradients on plain rows, the base model with adapters off, and what checkpoints hold."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers

import grpo
from grpo.cli.main import main
from grpo.config import Checkpoints as Keeping
from grpo.config import Config, Critic, Evaluation, Lora, Optimizer, System
from grpo.errors import GrpoError
from grpo.model.critic import make_critic
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.lora import adapt, adapted_layers, restore, switched_off, tensors
from grpo.model.optimizer import make_optimizer
from grpo.model.packing import pack
from grpo.model.policy import Policy, logprobs
from grpo.record.checkpoints import Checkpoints
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.training import fingerprint
from grpo.types import Group, Problem
from helpers.groups import annotated
from helpers.policies import random_adapter, random_policy

PROBLEMS = [Problem(str(i), text, "") for i, text in enumerate(["hello", "longer prompt"])]
SAMPLING = Sampling(seed=3, temperature=0.8, max_new_tokens=9)


def sampled(policy: Policy) -> list[Group]:
    policy.end_tokens = frozenset(range(1, 9))  # so that some completions end soon
    return Engine(policy).sample(PROBLEMS, 4, SAMPLING)


def trainer_logprobs(policy: Policy, groups: list[Group]) -> torch.Tensor:
    [batch] = pack(groups, 10_000)
    with torch.no_grad():
        return logprobs(policy, batch, SAMPLING.temperature)[0]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "gemma", "gpt2"])
def test_sampler_and_trainer_agree(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("grpo.rollout.cpu.linear.SMALL_MODEL", 10)
    policy = random_adapter(name)
    groups = sampled(policy)
    [batch] = pack(groups, 10_000)
    torch.testing.assert_close(trainer_logprobs(policy, groups), batch.sampler_logp_NL, atol=2e-5, rtol=0)
    with switched_off(policy.model):
        assert (trainer_logprobs(policy, groups) - batch.sampler_logp_NL).abs().max() > 0.1, "the adapter says nothing"
    assert not any("forward" in vars(module) for module in policy.model.modules())


def test_a_working_copy_made_before_an_adapter_or_another_weight_is_made_again() -> None:
    policy = random_policy("llama")
    first = policy.fused
    assert policy.fused is first
    down = policy.model.base_model.layers[1].mlp.down_proj
    down.weight = torch.nn.Parameter(down.weight.detach().clone())
    second = policy.fused
    assert second is not first
    policy.name = "nano"  # a model that there is, for adapter_config.json
    adapt(policy, Lora(rank=2), seed=1)
    third = policy.fused
    assert third is not second
    assert third.layers[0].qkv.adapter is not None
    assert policy.fused is third


def test_the_decoder_of_a_gpu_samples_from_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a fused product's maps adapted, some of them, and none."""
    pytest.importorskip("triton")
    from helpers.interpreted import InterpretedDecoding

    targets = "q_proj, v_proj, gate_proj, up_proj, down_proj"
    policy = random_adapter("qwen2", settings=Lora(rank=3, alpha=6.0, targets=targets))
    short = replace(SAMPLING, max_new_tokens=3)
    expected = Engine(policy).sample(PROBLEMS, 2, short)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    engine = Engine(policy)

    def assert_samples(expected: list[Group]) -> None:
        for a, b in zip(expected, engine.sample(PROBLEMS, 2, short), strict=True):
            for c, d in zip(a.completions, b.completions, strict=True):
                assert c.tokens.tolist() == d.tokens.tolist()
                np.testing.assert_allclose(c.logprobs, d.logprobs, atol=1e-4)

    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    assert_samples(expected)
    held = engine.graphs
    layer = policy.model.base_model.layers[0]
    assert layer.mlp.down_proj.base_layer.weight.data_ptr() == held.fused.layers[0].down.weight.data_ptr()
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name]), "moved, not changed"
    # As training moves the adapter, the decoder follows, in the same place.
    with torch.no_grad():
        for adapted in adapted_layers(policy.model):
            adapted.lora_B["default"].weight.mul_(-1.0)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: False)
    after = Engine(policy).sample(PROBLEMS, 2, short)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    assert_samples(after)
    assert engine.graphs is held
    assert [c.tokens.tolist() for g in after for c in g.completions] != [
        c.tokens.tolist() for g in expected for c in g.completions
    ]


def plain_peft(policy: Policy, architecture: str, settings: Lora) -> peft.PeftModel:
    """The same weights in peft's own wrapping of a stock model."""
    plain = random_policy(architecture, torch.float64, attention="sdpa").model
    names = sorted({name.split(".lora_A")[0].rpartition(".")[2] for name in tensors(policy.model) if "lora_A" in name})
    wrapped = peft.get_peft_model(
        plain, peft.LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=names)
    )
    ours = {name.removeprefix("base_model.model."): weight.detach() for name, weight in tensors(policy.model).items()}
    found = peft.set_peft_model_state_dict(wrapped, {f"base_model.model.{name}": w for name, w in ours.items()})
    assert not found.unexpected_keys
    return wrapped


# Llama and Qwen norm in float32 whatever their precision; Phi does not.
@pytest.mark.parametrize(("name", "bound"), [("phi", 1e-10), ("llama", 1e-4), ("qwen3", 1e-4)])
def test_gradients_equal_those_of_pefts_own_forward(name: str, bound: float) -> None:
    """Packed groups here; there one row per completion, behind a prompt of its own. In float64: one gradient."""
    settings = Lora(rank=3, alpha=6.0)
    policy = random_adapter(name, torch.float64, settings)
    groups = sampled(policy)
    [batch] = pack(groups, 10_000)
    logprobs(policy, batch, 0.8)[0].sum().backward()
    wrapped = plain_peft(policy, name, settings)
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        for completion in group.completions:
            row = torch.tensor([*group.prompt_tokens, *completion.tokens])[None]
            logp_SV = torch.log_softmax(wrapped(input_ids=row).logits[0] / 0.8, dim=-1)
            start, end = len(group.prompt_tokens), row.shape[1]
            total = total + logp_SV[torch.arange(start - 1, end - 1), row[0, start:]].sum()
    total.backward()
    ours = {name: weight.grad for name, weight in policy.model.named_parameters() if weight.grad is not None}
    theirs = {
        name.removeprefix("base_model.model."): weight.grad
        for name, weight in wrapped.named_parameters()
        if weight.grad is not None
    }
    assert set(ours) == set(theirs)
    assert all("lora_" in name for name in ours)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], atol=bound, rtol=bound)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_switched_off_it_is_the_base_model_bit_for_bit(name: str) -> None:
    adapted, base = random_adapter(name), random_policy(name)
    groups = sampled(adapted)
    with switched_off(adapted.model):
        assert torch.equal(trainer_logprobs(adapted, groups), trainer_logprobs(base, groups))
    config = Config(model="nano", temperature=0.8, lora=Lora(rank=3))
    with_reference = annotated(groups, adapted, adapted, config)
    expected = trainer_logprobs(base, groups)
    mask_NL = pack(groups, 10_000)[0].mask_NL
    found = np.concatenate([c.ref_logprobs for group in with_reference for c in group.completions])
    assert found.tolist() == expected[mask_NL].tolist()
    assert len(adapted.trainable()) == 2 * len(adapted_layers(adapted.model)), "they learn again afterwards"


def test_at_first_nothing_changes_and_only_the_adapter_learns() -> None:
    policy, base = random_policy("llama"), random_policy("llama")
    policy.name = "nano"
    adapt(policy, Lora(rank=4), seed=1)
    groups = sampled(base)
    assert torch.equal(trainer_logprobs(policy, groups), trainer_logprobs(base, groups))
    # 2 layers of maps 32→32, 32→16, 32→16, 32→32, 32→64, 32→64, 64→32, each with rank · (inputs + outputs).
    assert sum(weight.numel() for _, weight in policy.trainable()) == 2 * 4 * (64 + 48 + 48 + 64 + 96 + 96 + 96)
    optimizer = make_optimizer(policy, Optimizer(weight_decay=0.1))
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    logprobs(policy, pack(groups, 10_000)[0], 0.8)[0].sum().backward()
    optimizer.descend(lr=0.1, grad_clip=1.0)
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name]) != ("lora_" in name), name
    assert {name for name, _ in optimizer.state()} == {
        f"{kind}/{name}" for name, _ in policy.trainable() for kind in ("step", "exp_avg", "exp_avg_sq")
    }


def test_the_seed_decides_the_adapter_and_leaves_other_randomness_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        policy = random_policy("llama")
        policy.name = "nano"
        adapt(policy, Lora(rank=4), seed)
        return adapted_layers(policy.model)[0].lora_A["default"].weight

    torch.manual_seed(7)
    expected = torch.rand(3)
    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    torch.manual_seed(0)
    policy = random_policy("llama")
    policy.name = "nano"
    torch.manual_seed(7)
    adapt(policy, Lora(rank=4), 3)
    assert torch.equal(torch.rand(3), expected)


def test_frozen_weights_in_the_precision_of_products_change_no_product() -> None:
    """Mixed precision casts every weight for its product; frozen ones are cast once, and take half the memory."""
    policy = random_adapter("llama")
    wide = copy.deepcopy(policy)
    wide.compute = torch.bfloat16
    for layer in adapted_layers(wide.model):
        layer.cast_input_dtype_enabled = False
    narrow = random_policy("llama")
    narrow.name, narrow.compute = "nano", torch.bfloat16
    adapt(narrow, Lora(rank=3, alpha=6.0), seed=1)
    narrow.model.load_state_dict({name: w for name, w in policy.model.state_dict().items() if "lora_" in name}, False)
    dtypes = {name: weight.dtype for name, weight in narrow.model.named_parameters()}
    for name, dtype in dtypes.items():
        linear = "base_layer" in name or name == "lm_head.weight"
        assert dtype == (torch.bfloat16 if linear else torch.float32), name
    groups = sampled(policy)
    assert torch.equal(trainer_logprobs(narrow, groups), trainer_logprobs(wide, groups))


def test_in_bfloat16_the_adapter_is_kept_in_float32() -> None:
    policy = random_policy("llama", torch.bfloat16)
    policy.name = "nano"
    adapt(policy, Lora(rank=4), seed=1)
    assert {weight.dtype for _, weight in policy.trainable()} == {torch.float32}
    assert policy.compute_dtype == policy.compute == torch.bfloat16
    groups = sampled(policy)
    [batch] = pack(groups, 10_000)
    assert (trainer_logprobs(policy, groups) - batch.sampler_logp_NL)[batch.mask_NL].abs().mean() < 0.05


def test_a_critic_of_its_own_learns_adapters_too() -> None:
    policy = load_policy("nano")
    adapt(policy, Lora(rank=2), seed=1)
    critic = make_critic(Config(model="nano", algorithm="ppo", lora=Lora(rank=2)), policy)
    names = [name for name, _ in critic.named_parameters()]
    assert all("lora_" in name or name.startswith("head.") for name in names)
    assert len(names) == len(policy.trainable()) + 2
    shared = make_critic(
        Config(model="nano", algorithm="ppo", lora=Lora(rank=2), critic=Critic(model="shared")), policy
    )
    assert [name for name, _ in shared.named_parameters()] == ["head.weight", "head.bias"]


# Whole runs.


def small(folder: Path, **changes: object) -> Config:
    settings: dict[str, object] = {
        "model": "nano",
        "run": "adapted",
        "steps": 4,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 32,
        "lr": 3e-3,
        "checkpoint_every": 2,
        "lora": Lora(rank=4),
        "evaluation": Evaluation(every=0, problems=8, probes=0),
        "system": System(runs=str(folder)),
    }
    return Config(**(settings | changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with grpo.train(small(folder)) as run:
        assert run.summary()["status"] == "finished"
    return folder


def test_a_resumed_run_is_the_run_that_was_not_stopped(trained: Path, tmp_path: Path) -> None:
    grpo.train(small(tmp_path, steps=2)).close()
    with grpo.train(small(tmp_path, resume=True)) as resumed, grpo.record.store.Run.open(trained, "adapted") as whole:
        assert [row["loss"] for row in resumed.metrics()] == [row["loss"] for row in whole.metrics()]
        assert [row["kl"] for row in resumed.metrics()] == [row["kl"] for row in whole.metrics()]
        assert whole.metrics()[-1]["kl"] > 0, "it has moved away from the reference"
        ends = [Checkpoints(run.path).at(4) for run in (resumed, whole)]
    files = [{p.name: p.read_bytes() for p in end.path.rglob("*.safetensors")} for end in ends]
    assert files[0] == files[1]
    assert set(files[0]) == {"adapter_model.safetensors", "optimizer.safetensors"}, "the frozen weights are not kept"


def test_export_merges_or_keeps_the_adapter(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs", str(trained)]
    assert main(["export", "adapted", str(tmp_path / "plain"), *runs]) == 0
    assert main(["export", "adapted", str(tmp_path / "kept"), "--adapter", *runs]) == 0
    assert not list((tmp_path / "plain").glob("adapter*"))
    base = transformers.AutoModelForCausalLM.from_pretrained(locate_model("nano"))
    row = torch.arange(2, 17)[None]
    first = base(input_ids=row).logits
    by_peft = peft.PeftModel.from_pretrained(base, str(tmp_path / "kept"))(input_ids=row).logits
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")(input_ids=row).logits
    torch.testing.assert_close(merged, by_peft, atol=1e-4, rtol=1e-5)
    assert (by_peft - first).abs().max() > 1e-2
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")("1+1")["input_ids"]
    settings = json.loads((tmp_path / "kept" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (4, 32.0, "LORA")
    assert settings["base_model_name_or_path"] == locate_model("nano")
    capsys.readouterr()
    # A run by its name, and a folder with an adapter, are models like any other.
    for model in ("adapted", str(tmp_path / "kept"), str(tmp_path / "plain")):
        assert main(["sample", model, "2+2=", "-n", "2", "--json", "--temperature", "0", *runs]) == 0
    said = [json.loads(line)["completions"][0] for line in capsys.readouterr().out.splitlines()]
    assert said[0]["text"] == said[1]["text"] == said[2]["text"]
    assert said[0]["logprob"] == pytest.approx(said[2]["logprob"], abs=1e-4)


def test_bad_input_is_told_in_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        GrpoError, match=r"field lora.targets: no linear layer is named 'query'; this model's are .*q_proj"
    ):
        grpo.train(small(tmp_path, lora=Lora(rank=4, targets="q_proj,query")))
    assert not (tmp_path / "adapted").exists(), "nothing was begun"
    with pytest.raises(GrpoError, match=r"field loss.refresh: with LoRA the reference is the model without adapters"):
        grpo.train(small(tmp_path, loss=replace(Config().loss, refresh=10)))
    with pytest.raises(GrpoError, match=r"field lora.rank: must be 0 or more; got -1"):
        grpo.train(small(tmp_path, lora=Lora(rank=-1)))
    with pytest.raises(GrpoError, match=r"began with other inputs: lora.rank was 4, is 8"):
        grpo.train(small(trained, resume=True, lora=Lora(rank=8)))
    checkpoint = Checkpoints(trained / "adapted").newest()
    assert checkpoint is not None
    policy = load_policy("nano")
    adapt(policy, Lora(rank=8), seed=1)
    with pytest.raises(GrpoError, match=r"q_proj.lora_A.weight is 4 × 64 there and 8 × 64 here; resume with"):
        restore(policy.model, checkpoint.model)
    with pytest.raises(GrpoError, match="holds a whole model, not an adapter"):
        restore(policy.model, Path(locate_model("nano")))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for content, told in (
        ("{", "cannot be read as JSON"),
        ("{}", "names no model in base_model_name_or_path"),
        (f'{{"base_model_name_or_path": "{damaged}"}}', "names no model in base_model_name_or_path"),
        ('{"base_model_name_or_path": "nano"}', "has no adapter_model.safetensors"),
    ):
        (damaged / "adapter_config.json").write_text(content)
        for command in (["sample", str(damaged), "1+1="], ["plan", str(damaged)]):
            assert main(command) == 2
            assert re.fullmatch(f"grpo: field model: .*{told}.*\n", capsys.readouterr().err)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(GrpoError, match=r'field lora.rank: LoRA needs peft: pip install "grpo-lab\[lora\]"'):
        grpo.train(small(tmp_path))


def test_adapters_upon_adapters(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that begins from a run with adapters begins from the merged model."""
    model = Checkpoints(trained / "adapted").newest().model
    with grpo.train(small(tmp_path, model=str(model), task="arithmetic:easy", steps=2, lr=0.1)) as run:
        assert run.meta("memory")["predicted"] > 0, "its shape is the base model's"
    runs = ["--runs", str(tmp_path)]
    assert main(["export", "adapted", str(tmp_path / "kept"), "--adapter", *runs]) == 2
    assert "field adapter: adapted was trained on another adapter" in capsys.readouterr().err
    assert main(["export", "adapted", str(tmp_path / "plain"), *runs]) == 0
    merged = load_policy(str(tmp_path / "plain")).weights()
    base, first, second = load_policy("nano"), load_policy(str(model)), merged
    name = "model.layers.0.self_attn.q_proj.weight"
    gaps = [
        (a - b).abs().max()
        for a, b in ((base.weights()[name], first.weights()[name]), (first.weights()[name], second[name]))
    ]
    assert min(gaps) > 1e-6
    assert fingerprint.model_fingerprint(str(model)) != fingerprint.model_fingerprint(locate_model("nano"))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_an_adapter_of_shared_weights_is_refused(tmp_path: Path) -> None:
    """Merged, an adapter of the output layer would change the embedding too."""
    peft = pytest.importorskip("peft")
    base = load_policy("tiny").model
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    for target in ("lm_head", "embed_tokens"):
        config = peft.LoraConfig(r=2, target_modules=[target, "q_proj"])
        adapted = peft.get_peft_model(load_policy("tiny").model, config)
        adapted.save_pretrained(str(tmp_path / target), save_embedding_layers=False)
        with pytest.raises(GrpoError, match=r"changes the output layer or the embedding of .*tiny, which share"):
            load_policy(str(tmp_path / target))


def test_layers_that_peft_refuses_are_told_in_one_line(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=19, hidden_size=16, num_hidden_layers=1, state_size=4, eos_token_id=18)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(locate_model("nano")) / file, tmp_path / file)
    policy = load_policy(str(tmp_path))
    with pytest.raises(
        GrpoError, match=r"^field lora.targets: peft cannot adapt dt_proj, .*'out_proj' is incompatible"
    ):
        adapt(policy, Lora(rank=2), seed=1)
    adapt(load_policy(str(tmp_path)), Lora(rank=2, targets="in_proj,x_proj"), seed=1)


def test_a_whole_model_is_not_resumed_with_another_shape_or_an_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grpo.train(small(tmp_path, lora=Lora(), steps=1)).close()
    change = Keeping(allow_change=True)
    with pytest.raises(
        GrpoError, match=r"has another shape than tiny: its hidden is 64, not 160; resume with the model"
    ):
        grpo.train(small(tmp_path, lora=Lora(), model="tiny", resume=True, checkpoints=change))
    with pytest.raises(GrpoError, match=r"holds a whole model, not an adapter; resume with --lora.rank 0"):
        grpo.train(small(tmp_path, resume=True, checkpoints=change))
    assert main(["export", "adapted", str(tmp_path / "kept"), "--adapter", "--runs", str(tmp_path)]) == 2
    assert "field adapter: adapted has no adapter (it trained the whole model)" in capsys.readouterr().err


def test_what_does_nothing_is_said() -> None:
    from grpo.config.rules import warnings

    assert list(warnings(Config(lora=Lora(targets="q_proj")))) == ["lora.targets has no effect: lora.rank is 0"]
    assert list(warnings(Config(lora=Lora(rank=4, targets="q_proj")))) == []


def test_architectures_have_the_layers_that_are_adapted_by_default() -> None:
    names = {
        "llama": "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj",
        "phi3": "down_proj gate_up_proj o_proj qkv_proj",
        "phi": "dense fc1 fc2 k_proj q_proj v_proj",
    }
    for name, expected in names.items():
        assert random_adapter(name).adapter["target_modules"] == expected.split()
