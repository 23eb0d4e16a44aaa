"""LoRA: only small matrices beside frozen linear layers are trained. peft inserts and runs them.

An adapted layer computes W·x + scale·B·(A·x), with A of `rank` rows and B of `rank` columns. B starts at 0, so that
training starts at the unchanged model. Only this file uses peft's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from grpo.config import Lora
from grpo.errors import GrpoError
from grpo.model.hub import locate_model
from grpo.model.hub.folder import ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from grpo.model.policy import Policy

NAME = "default"
"""peft's name of a single adapter."""
PREFIX = "base_model.model."
"""Prefix of module names in peft's files."""


def adapt(policy: Policy, settings: Lora, seed: int) -> None:
    """Inserts adapters into the policy's model. From then on only they are trained, in float32 or wider."""
    peft, model = _peft(), policy.model
    targets = _targets(model, settings.targets)
    chosen = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in _linear_layers(model).values()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=_place(policy.name),
    )
    if model.dtype == torch.bfloat16:
        policy.compute = torch.bfloat16  # adapters in float32, computation in bfloat16
    freeze(policy)
    with torch.random.fork_rng(devices=[policy.device] if policy.device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(chosen, model)
        except ValueError as error:  # border: layers of a model that peft refuses, such as Mamba's out_proj
            reason = str(error).strip().partition("\n")[0]
            raise GrpoError(
                f"field lora.targets: peft cannot adapt {', '.join(targets)} of {policy.name}: {reason}"
            ) from error
    for layer in adapted_layers(model):
        for part in (layer.lora_A, layer.lora_B):
            part.to(torch.promote_types(model.dtype, torch.float32))
        layer.cast_input_dtype_enabled = policy.compute is None  # autocast casts without an extra copy
    policy.adapter = _as_json(chosen.to_dict()) | {"target_modules": targets, "inference_mode": True}


def freeze(policy: Policy) -> None:
    """Makes all parameters untrainable: of a reference, or of the model below adapters.

    Linear layers are stored in the precision of computation: in bfloat16 that halves their memory and changes no
    result.
    """
    policy.model.requires_grad_(False)
    if policy.compute is not None:
        for layer in narrow_layers(policy.model):
            layer.to(policy.compute)


def held_weights(policy: Policy) -> dict[torch.nn.Parameter, torch.dtype]:
    """Trainable weights that the model can hold in the precision of computation, with that precision. No result
    changes if their float32 values are kept for the optimizer."""
    if policy.compute is None or policy.adapter:
        return {}
    return {layer.weight: policy.compute for layer in narrow_layers(policy.model)}


def narrow_layers(model: Any) -> list[Any]:
    """Layers that compute in 16 bits: the linear ones, and the output layer unless it is tied to the embedding."""
    head = model.get_output_embeddings()
    tied = head.weight is model.get_input_embeddings().weight
    return [*_linear_layers(model).values(), *([] if tied else [head])]


def adapted_layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if is_adapted(module)]


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """While active, the model computes without its adapter: the reference, without a second model."""
    layers = adapted_layers(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def is_adapted(layer: Any) -> bool:
    return hasattr(layer, "lora_A")


def factor_weights(layer: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The trainable weights A and B, and the scale."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight, layer.scaling[NAME]


def factors(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, inputs] and scale·B [outputs, rank] of an adapted layer."""
    return layer.lora_A[NAME].weight.detach(), layer.lora_B[NAME].weight.detach() * layer.scaling[NAME]


def whole_layers(model: Any) -> list[Any]:
    """Every linear layer, adapted layers as one instead of their parts."""
    adapted = {layer for layer in adapted_layers(model) if type(layer.base_layer) is torch.nn.Linear}
    inside = {part for layer in adapted for part in layer.modules() if part is not layer}
    plain = (module for module in model.modules() if type(module) is torch.nn.Linear or module in adapted)
    return [module for module in plain if module not in inside]


def merged_weight(layer: Any) -> torch.Tensor:
    """The weight of a linear layer with its adapter merged."""
    if not is_adapted(layer):
        return layer.weight.detach()
    A, B = factors(layer)
    return torch.addmm(layer.weight.detach(), B, A)


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Tensors of adapter_model.safetensors, by peft's names."""
    return {
        f"{PREFIX}{name.replace(f'.{NAME}.', '.')}": weight
        for name, weight in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }


@torch.no_grad()
def restore(model: Any, folder: Path) -> None:
    """Loads the adapter of a checkpoint, which must have this model's shapes, rank and targets."""
    from safetensors.torch import load_file

    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise GrpoError(f"field lora.rank: {folder} holds a whole model, not an adapter; resume with --lora.rank 0")
    saved, wanted = load_file(folder / ADAPTER_WEIGHTS), tensors(model)
    shapes, expected = ({name: tuple(t.shape) for name, t in held.items()} for held in (saved, wanted))
    if shapes != expected:
        name = next(name for name in (*expected, *shapes) if shapes.get(name) != expected.get(name))
        raise GrpoError(
            f"field lora: the adapter in {folder} has another shape: {name.removeprefix(PREFIX)} is "
            f"{_shown(shapes.get(name))} there and {_shown(expected.get(name))} here; resume with the model, "
            "lora.rank and lora.targets it was trained with"
        )
    for name, weight in wanted.items():
        weight.copy_(saved[name])


def merge(policy: Policy, folder: Path) -> None:
    """Merges the adapter in `folder`, of any kind peft knows, into the policy's weights."""
    peft = _peft()
    try:
        adapted = peft.PeftModel.from_pretrained(policy.model, str(folder))
        _refuse_shared(policy, folder)
        policy.model = adapted.merge_and_unload()
    # Border: a folder of the user. Any fault is reported in one line.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise GrpoError(f"field model: the adapter in {folder} does not fit {policy.name}: {reason}") from error
    policy.model.requires_grad_(True)


def _refuse_shared(policy: Policy, folder: Path) -> None:
    """An adapter of the output layer alone would also change the embedding that shares its weights, and the reverse."""
    layers = policy.model.get_output_embeddings(), policy.model.get_input_embeddings()
    head, table = (getattr(layer, "base_layer", layer) for layer in layers)
    if head.weight is table.weight and (head, table) != layers:
        raise GrpoError(
            f"field model: the adapter in {folder} changes the output layer or the embedding of {policy.name}, which "
            "share their weights; train an adapter without them, or merge it into a copy with untied weights"
        )


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError as missing:
        if missing.name != "peft":
            raise
        raise GrpoError('field lora.rank: LoRA needs peft: pip install "grpo-lab[lora]"') from None
    return peft


def _linear_layers(model: Any) -> dict[str, Any]:
    """Linear layers of the blocks by name: all except the output layer."""
    head = model.get_output_embeddings()
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D) and layer is not head
    }


def _targets(model: Any, wanted: str) -> list[str]:
    """Names of the layers to adapt, without their path."""
    layers = _linear_layers(model)
    names = sorted({name.rpartition(".")[2] for name in layers})
    targets = sorted({name.strip() for name in wanted.split(",") if name.strip()})
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            raise GrpoError(
                f"field lora.targets: no linear layer is named {target!r}; this model's are {', '.join(names)}"
            )
    return targets or names


def _place(name: str) -> str:
    """The base model as peft finds it: a folder by its full path."""
    place = Path(locate_model(name))
    return str(place.resolve()) if place.is_dir() else name


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    return {name: getattr(value, "value", value) for name, value in plain.items()}  # enumerations by their value


def _shown(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else " × ".join(map(str, shape))
