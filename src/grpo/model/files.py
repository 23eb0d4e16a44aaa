"""A policy as the files of a Hugging Face folder: config, tokenizer and weights, or a LoRA adapter."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from grpo.model.hub.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo.model.policy import Policy
from grpo.model.tensorfile import Mirror, load_tensors, save_tensors, write_tensors


def model_files(policy: Policy) -> dict[str, bytes]:
    """All files of the folder except the weights.

    They are made once and kept with the policy: training does not change them, and two threads must not use a
    tokenizer at the same time.
    """
    if policy.files is None:
        policy.files = _made(policy)
    return policy.files


def _made(policy: Policy) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if policy.adapter:
            (folder / ADAPTER_CONFIG).write_text(json.dumps(policy.adapter, indent=2))
        else:
            policy.model.config.save_pretrained(folder)
            if policy.model.generation_config is not None:
                policy.model.generation_config.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def save_model(policy: Policy, folder: Path) -> None:
    """Writes a Hugging Face folder."""
    weights = Mirror().copy({"model": policy.weights().items()})["model"]
    write_model(folder, model_files(policy), published(policy.model.config, weights))


def copy_model(source: Path, folder: Path) -> None:
    """Copies the Hugging Face folder of a checkpoint."""
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    weights = load_tensors(source / "model.safetensors")
    renamed = published(config, weights)
    same = renamed.keys() == weights.keys()
    shutil.copytree(
        source, folder, dirs_exist_ok=True, ignore=None if same else shutil.ignore_patterns("model*.safetensors*")
    )
    if not same:
        save_tensors(folder / "model.safetensors", renamed)


def published(config: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights as folders on the Hub have them, which other programs read. In memory transformers has other names
    for some, and the experts of a layer as one tensor."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return revert_weight_conversion(model, dict(weights))


def write_model(folder: Path, files: Mapping[str, bytes], weights: Mapping[str, torch.Tensor]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if ADAPTER_CONFIG in files:
        write_tensors(folder / ADAPTER_WEIGHTS, weights)  # peft reads one file only
    else:
        save_tensors(folder / "model.safetensors", weights)
