"""A policy as the files of a Hugging Face folder: config, tokenizer and weights, or a LoRA adapter."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from grpo.model.hub.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo.model.policy import Policy
from grpo.model.tensorfile import Mirror, save_tensors, write_tensors


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
    write_model(folder, model_files(policy), Mirror().copy({"model": policy.weights().items()})["model"])


def write_model(folder: Path, files: Mapping[str, bytes], weights: Mapping[str, torch.Tensor]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if ADAPTER_CONFIG in files:
        write_tensors(folder / ADAPTER_WEIGHTS, weights)  # peft reads one file only
    else:
        save_tensors(folder / "model.safetensors", weights)
