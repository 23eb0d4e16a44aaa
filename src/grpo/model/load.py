"""Loads a model by name as a policy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch.nn import ModuleList

from grpo.errors import GrpoError, headline
from grpo.model import lora
from grpo.model.attention import NAME as ATTENTION
from grpo.model.fused.weights import can_be_fused
from grpo.model.hub import locate_model
from grpo.model.hub.folder import adapter_base, cache, check_weight_files, remedy
from grpo.model.hub.quiet import quiet_transformers
from grpo.model.packed_check import equals_stock, knows_output_layer
from grpo.model.padded import can_be_packed
from grpo.model.policy import Policy
from grpo.model.prompt import set_chat_template

FAULTS = (
    *(OSError, ImportError, ValueError, LookupError, TypeError, AttributeError, RuntimeError),
    *(ArithmeticError, AssertionError, SafetensorError, StrictDataclassError),
)
"""Border: what transformers raises on a damaged folder of the user. Any fault is reported in one line."""
OF_SIZES = (ArithmeticError, AssertionError, AttributeError, LookupError)
"""Those among them that wrong values in config.json lead to, and whose messages name neither file nor field."""


ALIGNMENT = 64
"""Bytes: torch's own memory begins at a multiple of it."""


def load_policy(
    name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, compute: torch.dtype | None = None
) -> Policy:
    """`name`: an embedded model, a Hugging Face folder or id, or a folder with an adapter, which is merged."""
    source = locate_model(name)
    if base := adapter_base(Path(source)):
        policy = load_policy(base, device=device, dtype=dtype, compute=compute)
        lora.merge(policy, Path(source))
        policy.name = name
        _take_chat_template(policy.tokenizer, Path(source))
        return policy
    if Path(source).is_dir():
        check_weight_files(Path(source))
    try:
        with quiet_transformers():
            # The small file first: offline, this fails once and early instead of once per file.
            config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except FAULTS as error:
        raise _unloadable(name, Path(source), error) from error
    _refuse_images(config, name)
    if (place := torch.device(device)).index is not None:
        torch.cuda.set_device(place)  # Triton launches kernels, and graphs are captured, on the current device

    def load(padded: bool) -> Policy:
        model = _load_model(name, source, dtype, None if padded else ATTENTION).to(device)
        _take_aligned_memory(model)
        return Policy(model, tokenizer, name, _end_tokens(model, tokenizer, name), compute=compute, padded=padded)

    policy = load(padded=not can_be_packed(_model_class(config), config))
    if can_be_fused(policy.model):
        return policy
    if not knows_output_layer(policy):
        raise GrpoError(
            f"field model: {name!r} ({config.model_type}) computes logits in a way that grpo does not know; use "
            "another model"
        )
    if policy.padded or equals_stock(policy):
        return policy
    del policy
    return load(padded=True)


def _load_model(name: str, source: str, dtype: torch.dtype, attention: str | None) -> Any:
    try:
        with quiet_transformers():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation=attention,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, with their names
                use_safetensors=True,  # the other format is pickle, which can run code
                trust_remote_code=False,
            )
    except FAULTS as error:
        raise _unloadable(name, Path(source), error) from error
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    missing = sorted(set(report["missing_keys"]) - tied)
    if missing:
        # transformers would fill these with random numbers.
        raise GrpoError(
            f"field model: {name!r} lacks {len(missing)} weights, the first is {missing[0]}; {remedy(Path(source))}"
        )
    if wrong := sorted(report["mismatched_keys"]):
        weight, here, expected = wrong[0]
        raise GrpoError(
            f"field model: {name!r} has {len(wrong)} weights of another size than its config.json states, the first is "
            f"{weight} with {list(here)}, not {list(expected)}; correct config.json, or {remedy(Path(source))}"
        )
    _check_layers(model, report["unexpected_keys"], name, Path(source))
    # Dropout would make the trainer's log-probabilities disagree with the sampler's.
    return model.eval()


def _take_aligned_memory(model: Any) -> None:
    """Copy weights that are read from their file in place. Their place in the file decides how a CPU rounds the product
    of one row; a checkpoint is another file, and a resumed run must repeat every bit."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def _check_layers(model: Any, unexpected: Iterable[str], name: str, source: Path) -> None:
    """Refuse weights of layers beyond the model's last one: transformers would leave them out. Others may be left over:
    those of a vision tower or of a tied output layer, and tables of rotary positions."""
    trees = (model, model.base_model)  # some files name weights without the prefix of the head
    layers = {path: len(each) for tree in trees for path, each in tree.named_modules() if isinstance(each, ModuleList)}
    numbered = filter(None, (re.match(r"(.+?)\.(\d+)\.", weight) for weight in unexpected))
    # Layers that predict several tokens at once follow the last one (DeepSeek, GLM).
    more = getattr(model.config, "num_nextn_predict_layers", 0)
    more = more if isinstance(more, int) else 0
    for path, found in sorted((each[1], int(each[2]) + 1) for each in numbered)[::-1]:
        if path in layers and found > layers[path] + more:
            field = model.config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
            raise GrpoError(
                f"field model: config.json of {name!r} states {layers[path]} layers and its weights have {found}; set "
                f"{field} to {found}, or {remedy(source)}"
            )


def load_tokenizer(name: str) -> Any:
    """The tokenizer of the policy that `load_policy` loads by this name."""
    source = locate_model(name)
    if base := adapter_base(Path(source)):
        tokenizer = load_tokenizer(base)
        _take_chat_template(tokenizer, Path(source))
        return tokenizer
    try:
        with quiet_transformers():
            return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except FAULTS as error:
        raise _unloadable(name, Path(source), error) from error


def _take_chat_template(tokenizer: Any, adapter: Path) -> None:
    """The chat template that an adapter was trained with, where its folder has one."""
    if (file := adapter / "chat_template.jinja").is_file():
        set_chat_template(tokenizer, str(file))


def _unloadable(name: str, source: Path, error: Exception) -> GrpoError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or isinstance(error, OF_SIZES):
        reason = headline(error)
    else:
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    way_out = f"; {remedy(source)}" if source.parent == cache() else ""
    if isinstance(error, OF_SIZES) and not way_out:
        way_out = "; check the values in its config.json, or copy the folder again"
    return GrpoError(f"field model: cannot load {name!r}: {reason}{way_out}")


def _model_class(config: Any) -> Any:
    """The model class of a config; None if transformers has none, which loading reports."""
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return mapping.get(type(config), None)


def _refuse_images(config: Any, name: str) -> None:
    """Refuse a model whose class reads images too. Of some (Qwen 3.5), transformers loads the text model alone."""
    if hasattr(config, "text_config") and getattr(_model_class(config), "config_class", None) in (None, type(config)):
        raise GrpoError(
            f"field model: {name!r} ({config.model_type}) reads images or sounds, and only models of text can be "
            "trained; use a model whose config.json has no text_config"
        )


def _end_tokens(model: Any, tokenizer: Any, name: str) -> frozenset[int]:
    """Those of generation_config.json, and the tokenizer's: many a fine-tuned model has the end of its turns only
    there."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = tokenizer.eos_token_id if ends is None else ends
    if ends is None:
        raise GrpoError(f"field model: {name!r} defines no end token (eos_token_id); set it in generation_config.json")
    found = ends if isinstance(ends, list | tuple) else [ends]
    count = model.config.get_text_config().vocab_size
    if not found or not all(type(end) is int and 0 <= end < count for end in found):
        raise GrpoError(
            f"field model: {name!r} has the end token {ends!r}; set eos_token_id in generation_config.json to the "
            f"number of one of its {count} tokens, or to a list of such numbers"
        )
    own = tokenizer.eos_token_id
    return frozenset(found if own is None or own >= count else [*found, own])
