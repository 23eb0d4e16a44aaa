"""Loading: what is wrong with a model folder is told in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from grpo.config.models import EMBEDDED
from grpo.errors import GrpoError
from grpo.model import policy as policy_module
from grpo.model.files import copy_model, model_files, save_model, write_model
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.packing import pack
from grpo.model.policy import logprobs
from grpo.model.tensorfile import load_tensors
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.types import Problem, chat
from helpers.policies import random_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(locate_model("nano"), tmp_path / "model")


def refusal(name: object) -> str:
    with pytest.raises(GrpoError) as caught:
        load_policy(str(name))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("field model: ")
    return message


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 933_440), ("nano", 101_888)])
def test_embedded_models_load(name: str, parameters: int) -> None:
    policy = load_policy(name)
    assert sum(weight.numel() for weight in policy.model.parameters()) == parameters
    assert policy.tokenizer("37+85=")["input_ids"] == [3, 7, 10, 8, 5, 12]
    assert policy.tokenizer.batch_decode([[13, 7, 15, 1, 2, 14, 1, 2]]) == ["(7,12)12"]
    assert policy.end_tokens == {policy.tokenizer.eos_token_id} == {18}


def test_a_completion_also_ends_with_the_end_token_of_the_tokenizer(folder: Path) -> None:
    """A model fine-tuned to end its turns with another token often keeps the generation_config.json of its base."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_policy(str(folder)).end_tokens == {5, 6, 18}


def test_unknown_names() -> None:
    assert "unknown model 'tinny'; use calculator, guess, nano, smollm2, tiny" in refusal("tinny")
    assert "unknown model './nowhere'" in refusal("./nowhere")
    assert "cannot load 'nobody/nothing'" in refusal("nobody/nothing")
    assert set(EMBEDDED) == {"calculator", "guess", "nano", "tiny"}


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json" in refusal(folder)


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, 1000, -1])
def test_truncated_weights(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    message = refusal(folder)
    assert f"model.safetensors is damaged: {len(whole[:keep])} bytes" in message


def test_the_place_of_weights_in_their_file_changes_no_bit(folder: Path) -> None:
    """A CPU may round the product of one row by the address of the weights; a resumed run reads another file."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    found = []
    for spaces in (0, 8):
        file.write_bytes((end - 8 + spaces).to_bytes(8, "little") + content[8:end] + b" " * spaces + content[end:])
        policy = load_policy(str(folder))
        assert {weight.data_ptr() % 64 for weight in policy.model.parameters()} == {0}
        hidden = torch.linspace(-1, 1, policy.model.config.hidden_size)[None]
        found.append((policy.logits(hidden), policy.model.model.layers[0].mlp.up_proj(hidden)))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_missing_tensors_are_not_filled_with_random_numbers(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 weights, the first is model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    refusal(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-architecture"}))
    refusal(folder)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("num_attention_heads", 0, "ZeroDivisionError: "),
        ("head_dim", 0, "ZeroDivisionError: "),
        ("vocab_size", 3, "AssertionError: Padding_idx must be within num_embeddings"),
        ("hidden_act", "zzz", "KeyError: 'zzz'"),
        ("dtype", "zzz", "AttributeError: "),
    ],
)
def test_wrong_values_in_a_config(field: str, value: object, reason: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    message = refusal(folder)
    assert f"cannot load {str(folder)!r}: {reason}" in message
    assert message.endswith("; check the values in its config.json, or copy the folder again")


def test_a_reason_of_two_lines_is_told(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": "2"}))
    assert "Field 'num_hidden_layers' expected int, got str (value: '2')" in refusal(folder)


def test_weights_of_another_size_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    assert "6 weights of another size" in refusal(folder)
    assert "the first is model.layers.0.mlp.down_proj.weight with [64, 176], not [64, 64]" in refusal(folder)


@pytest.mark.parametrize("layers", [1, 0, -2])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_model_is_not_truncated(layers: int, prefix: str, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors = {prefix + weight.removeprefix("model."): tensor for weight, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    message = refusal(folder)
    assert f"states {max(layers, 0)} layers and its weights have 2; set num_hidden_layers to 2, or copy" in message


def test_weights_beside_the_layers_may_be_left_over(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors |= {
        name: torch.zeros(2)
        for name in (
            *("model.layers.1.self_attn.rotary_emb.inv_freq", "vision_tower.layers.7.weight", "mtp.layers.3.weight"),
            *("model.layers.2.eh_proj.weight", "lm_head.scale"),
        )
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "states 2 layers and its weights have 3" in refusal(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert len(load_policy(str(folder)).model.model.layers) == 2


SMALL = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
GROUPED = SMALL | {"num_key_value_heads": 1, "intermediate_size": 16}
UNUSUAL = {
    "bloom": (transformers.BloomConfig(**SMALL, n_head=2, n_layer=2, eos_token_id=18), False),
    "gemma2": (transformers.Gemma2Config(**GROUPED, head_dim=8, eos_token_id=18, sliding_window=4), False),
    "cohere": (transformers.CohereConfig(**GROUPED, logit_scale=0.3, eos_token_id=18), True),
    "granite": (transformers.GraniteConfig(**GROUPED, logits_scaling=3.0, eos_token_id=18), True),
    "hyperclovax": (transformers.HyperCLOVAXConfig(**GROUPED, logits_scaling=0.3, eos_token_id=18), True),
    "falcon_h1": (
        transformers.FalconH1Config(
            **GROUPED, lm_head_multiplier=0.3, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
        ),
        False,
    ),
    "diffllama": (transformers.DiffLlamaConfig(**GROUPED | {"num_key_value_heads": 2}, eos_token_id=18), False),
    "opt": (transformers.OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=8, eos_token_id=18), True),
    "gpt2": (transformers.GPT2Config(vocab_size=19, n_embd=16, n_layer=2, n_head=2, eos_token_id=18), True),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_are_sampled_and_trained_as_they_compute(name: str, folder: Path, tmp_path: Path) -> None:
    """The trainer's log-probabilities are the sampler's, and those of the stock model, row by row."""
    config, packs = UNUSUAL[name]
    torch.manual_seed(0)
    stock = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in stock.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    stock.save_pretrained(tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, tmp_path / name / file)
    policy = load_policy(str(tmp_path / name))
    assert policy.padded == (not packs)
    problems = [Problem("a", "1+2=", ""), Problem("b", "12*13=", "")]
    groups = Engine(policy).sample(problems, 3, Sampling(seed=0, temperature=0.7, max_new_tokens=9))
    assert len({len(c) for group in groups for c in group.completions}) > 1
    [batch] = pack(groups, 10_000)
    logp_NL, _ = logprobs(policy, batch, 0.7)
    assert (logp_NL - batch.sampler_logp_NL)[batch.mask_NL].abs().max() < 2e-4
    for group in groups:
        for completion, row in zip(group.completions, logp_NL[: len(group.completions)], strict=True):
            tokens = torch.tensor([*group.prompt_tokens, *completion.tokens])[None]
            with torch.no_grad():
                expected = torch.log_softmax(stock(tokens).logits[0].float() / 0.7, dim=-1)
            start = len(group.prompt_tokens)
            found = expected[range(start - 1, tokens.shape[1] - 1), tokens[0, start:]]
            torch.testing.assert_close(row[: len(completion)].detach(), found, atol=2e-4, rtol=1e-3)
        logp_NL = logp_NL[len(group.completions) :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unknown_output_layer_is_refused(dtype: torch.dtype, folder: Path, tmp_path: Path) -> None:
    """ModernBERT's decoder has a layer before it; sampler and trainer would both leave it out, and agree."""
    config = transformers.ModernBertDecoderConfig(**GROUPED, global_attn_every_n_layers=1, eos_token_id=18)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "odd")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, tmp_path / "odd" / file)
    with pytest.raises(
        GrpoError, match=r"\(modernbert-decoder\) computes logits in a way that grpo does not know; use "
    ):
        load_policy(str(tmp_path / "odd"), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_in_float32_before_an_output_layer_of_16_bits_are_known(dtype: torch.dtype, folder: Path) -> None:
    """Mamba keeps its residual in float32."""
    config = transformers.MambaConfig(vocab_size=19, hidden_size=16, state_size=4, num_hidden_layers=2, eos_token_id=18)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    assert load_policy(str(folder), dtype=dtype).padded


def test_models_that_read_images_are_refused_before_their_weights_are_read(folder: Path) -> None:
    transformers.Gemma3Config(text_config=GROUPED).save_pretrained(folder)
    assert refusal(folder).endswith(
        "(gemma3) reads images or sounds, and only models of text can be trained; use a model whose config.json has no "
        "text_config"
    )


def test_saved_and_loaded_weights_are_the_same(tmp_path: Path) -> None:
    policy = load_policy("nano")
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.01)
    save_model(policy, tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved")).model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in policy.model.state_dict().items())
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")  # as anybody would load it
    assert torch.equal(stock.state_dict()["model.norm.weight"], again["model.norm.weight"])


@pytest.mark.parametrize(
    "config",
    [
        transformers.MixtralConfig(**GROUPED, num_local_experts=2, eos_token_id=18),
        transformers.GPTNeoXConfig(**SMALL, intermediate_size=16, eos_token_id=18),
    ],
    ids=["mixtral", "gpt_neox"],
)
def test_exported_weights_have_the_names_of_the_hub(
    config: transformers.PretrainedConfig, folder: Path, tmp_path: Path
) -> None:
    """transformers holds the experts of a layer as one tensor, and calls the output layer of GPT-NeoX lm_head."""
    published, checkpoint, copied, saved = (tmp_path / name for name in ("hub", "checkpoint", "copied", "saved"))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(published)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, published / file)
    policy = load_policy(str(published))
    checkpoint.mkdir()
    write_model(checkpoint, model_files(policy), policy.weights())
    copy_model(checkpoint, copied)
    saved.mkdir()
    save_model(policy, saved)
    expected = load_tensors(published / "model.safetensors")
    for made in (copied, saved):
        found = load_tensors(made / "model.safetensors")
        assert found.keys() == expected.keys() != policy.weights().keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert {file.name for file in made.iterdir()} == {file.name for file in checkpoint.iterdir()}


def test_logits_never_exist_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for 5 rows of logits the result and gradient are the same, and no larger piece is ever made."""
    from helpers.groups import random_groups

    policy = random_policy("phi", torch.float64)
    [batch] = pack(random_groups(), 10_000)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        logp_NL, entropy_NL = logprobs(policy, batch, 1.0)
        (logp_NL.sum() + entropy_NL.sum()).backward()
        gradient = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
        policy.model.zero_grad()
        return logp_NL.detach(), gradient

    whole = run()
    rows: list[int] = []
    matmul = policy_module.matmul_fp32_out
    monkeypatch.setattr(policy_module, "matmul_fp32_out", lambda x, weight: rows.append(len(x)) or matmul(x, weight))
    monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 5 * 48 + 7)
    chunked = run()
    assert max(rows) == 5
    assert sum(rows) == 2 * len(batch.target_A)  # once forward, once again in the backward pass
    for a, b in zip(whole, chunked, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_conversations_go_through_the_chat_template() -> None:
    policy = load_policy("nano")
    asked = Problem("p", "3+4=", "7", messages=chat("3+4="))
    plain = policy.tokenizer("3+4=")["input_ids"]
    assert policy.prompt_tokens(asked) == plain  # nano has no template: the text is read as it stands
    policy.tokenizer.chat_template = (
        "{% for m in messages %}({{ m.content }}){% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    assert policy.prompt_tokens(asked) == policy.tokenizer("(3+4=)=")["input_ids"]
    assert policy.prompt_tokens(Problem("p", "3+4=", "7")) == plain


@pytest.mark.parametrize("cleans_up", [False, True])
def test_texts_are_the_tokenizers_own(cleans_up: bool) -> None:
    policy = load_policy("nano")
    policy.tokenizer.clean_up_tokenization_spaces = cleans_up
    rows = [np.array(policy.prompt_tokens(Problem("", text, ""))) for text in ("12+34=", "7=", "")]
    rows.append(np.array([policy.tokenizer.eos_token_id, rows[0][0]]))
    assert policy.texts(rows) == policy.tokenizer.batch_decode(rows)
    assert policy.texts(rows)[:3] == ["12+34=", "7=", ""]
