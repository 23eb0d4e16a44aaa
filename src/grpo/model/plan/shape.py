"""The shape of a model: from its config.json, from a table of well-known models, or from a size such as "7B"."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config.leaf import shown
from grpo.config.models import EMBEDDED
from grpo.errors import GrpoError, one_line
from grpo.model.hub import locate_model
from grpo.model.hub.folder import adapter_base
from grpo.model.positions import limit_of_file

FUSED = {"llama", "qwen2", "qwen3", "mistral"}
"""Families of `grpo.model.fused.weights.BLOCKS`; a test checks that they are equal."""
PADDED = {
    *("bamba", "biogpt", "falcon_h1", "gemma4_text", "gemma4_unified_text", "olmo_hybrid", "qwen3_5_text", "stablelm"),
    *("zamba", "zamba2"),
}
"""Families that run padded (`grpo.model.padded`), as their config tells, and whose config has all sizes of a `Shape`.
Those that cap their scores, such as Gemma 2, do so too. Experts are refused."""
PADDED_WHEN_LOADED = {"doge", "granite_swa", "minicpm3", "nemotron", "recurrent_gemma", "youtu"}
"""Those of which only the loaded model tells (`grpo.model.packed_check`)."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configs."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder of the Llama family: RMS norms, rotary positions, gated feed-forward, grouped keys and values.

    >>> SHAPES["smollm2-135m"].parameters
    134515008
    """

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    tied: bool = True
    """The output layer is the embedding."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised per head, as in Qwen3."""
    fused: bool = True
    """Whether a GPU trains its blocks through `grpo.model.fused` or through transformers."""
    padded: str = ""
    """Model type of a family that runs padded; empty for others."""
    positions: int = 0
    """Most tokens of a sequence, as config.json states; 0: it states none, or the shape is not from one."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def linear_sizes(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of a layer's linear maps: query, key, value, output, gate, up, down."""
        C, H, K, F = self.hidden, self.query_width, self.kv_width, self.intermediate
        return (C, H), (C, K), (C, K), (H, C), (C, F), (C, F), (F, C)

    @property
    def linear_parameters(self) -> int:
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear_sizes)

    @property
    def biases(self) -> int:
        return self.layers * (self.query_width + 2 * self.kv_width) * self.qkv_bias

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        norms = 2 * self.hidden + 2 * self.head_width * self.qk_norm
        tables = self.embedding * (1 if self.tied else 2)
        return self.linear_parameters + self.biases + self.layers * norms + self.hidden + tables

    @property
    def body(self) -> int:
        """Parameters without an untied output layer."""
        return self.parameters - (0 if self.tied else self.embedding)

    def adapter_parameters(self, rank: int) -> int:
        """LoRA on every linear map: a matrix in and a matrix out, each of this rank."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.linear_sizes)

    def adapters_side_by_side(self, rank: int) -> int:
        """The same as the fused blocks store them: those of one input concatenated, block-diagonal with zeros."""
        (C, H), (_, K), _, (_, _), (_, F), _, _ = self.linear_sizes
        return self.layers * rank * (3 * C + 3 * (H + 2 * K) + H + C + 2 * C + 2 * 2 * F + F + C)


def _shape(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: str, **more: Any) -> Shape:
    """`heads` is written heads/kv_heads×width."""
    counts = [int(number) for number in re.findall(r"\d+", heads)]
    return Shape(
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=counts[0],
        kv_heads=counts[1],
        head_width=counts[2],
        **more,
    )


SHAPES: Mapping[str, Shape] = {
    "smollm2-135m": _shape(49152, 576, 1536, 30, "9/3×64"),
    "smollm2-360m": _shape(49152, 960, 2560, 32, "15/5×64"),
    "smollm2-1.7b": _shape(49152, 2048, 8192, 24, "32/32×64"),
    "qwen2.5-0.5b": _shape(151936, 896, 4864, 24, "14/2×64", qkv_bias=True),
    "qwen2.5-1.5b": _shape(151936, 1536, 8960, 28, "12/2×128", qkv_bias=True),
    "qwen2.5-3b": _shape(151936, 2048, 11008, 36, "16/2×128", qkv_bias=True),
    "qwen2.5-7b": _shape(152064, 3584, 18944, 28, "28/4×128", qkv_bias=True, tied=False),
    "qwen2.5-14b": _shape(152064, 5120, 13824, 48, "40/8×128", qkv_bias=True, tied=False),
    "qwen2.5-32b": _shape(152064, 5120, 27648, 64, "40/8×128", qkv_bias=True, tied=False),
    "qwen2.5-72b": _shape(152064, 8192, 29568, 80, "64/8×128", qkv_bias=True, tied=False),
    "qwen3-0.6b": _shape(151936, 1024, 3072, 28, "16/8×128", qk_norm=True),
    "qwen3-1.7b": _shape(151936, 2048, 6144, 28, "16/8×128", qk_norm=True),
    "qwen3-4b": _shape(151936, 2560, 9728, 36, "32/8×128", qk_norm=True),
    "qwen3-8b": _shape(151936, 4096, 12288, 36, "32/8×128", qk_norm=True, tied=False),
    "llama-3.2-1b": _shape(128256, 2048, 8192, 16, "32/8×64"),
    "llama-3.2-3b": _shape(128256, 3072, 8192, 28, "24/8×128"),
    "llama-3.1-8b": _shape(128256, 4096, 14336, 32, "32/8×128", tied=False),
    "llama-3.1-70b": _shape(128256, 8192, 28672, 80, "64/8×128", tied=False),
}
"""By the name people use, in small letters."""


FETCHED_SHAPE = {"smollm2": "smollm2-135m"}
"""Shapes of models that are downloaded by name."""


def find_shape(name: str, field: str = "model") -> Shape:
    """The shape of a name in the table, an embedded model, a Hugging Face folder or id; "7B": a typical model.
    `field` holds it, for messages."""
    known = name.rpartition("/")[2].lower().removesuffix("-instruct")
    known = FETCHED_SHAPE.get(known, known)
    if name not in EMBEDDED and not Path(name).is_dir():
        if known in SHAPES:
            return SHAPES[known]
        if re.fullmatch(r"[0-9.]+[bBmM]", name):
            return typical_shape(name)
        if "/" not in name:
            names = [*EMBEDDED, *FETCHED_SHAPE, *SHAPES]
            near = difflib.get_close_matches(known[:60], names, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names)}"
            raise GrpoError(f"field {field}: no shape {shown(name)}; {hint}; or give a folder, or a size (--params 7B)")
    config = read_config(name, field)
    if experts := experts_of(config):
        raise GrpoError(
            f"field {field}: {name} ({config.get('model_type')}) is a mixture of {experts} experts, which cannot be "
            "planned; plan a dense model of the same total size instead (--params 30B)"
        )
    return shape_of(config, name, field)


def experts_of(config: Mapping[str, Any]) -> int:
    """Experts per layer of a mixture-of-experts model; 0 for dense models.

    >>> experts_of({"num_local_experts": 8}), experts_of({"num_experts": None}), experts_of({"num_experts": 1})
    (8, 0, 0)
    """
    if config.get("is_moe") is False:  # Doge states a number in dense models, too
        return 0
    most = max((count for name in EXPERTS if isinstance(count := config.get(name), int)), default=0)
    return most if most > 1 else 0


def read_config(name: str, field: str = "model") -> dict[str, Any]:
    """The config.json of a folder or of a Hugging Face id, of which only this file is downloaded."""
    place = Path(locate_model(name, field)) / "config.json"
    if base := adapter_base(place.parent):
        return read_config(base, field)
    if not place.parent.is_dir():
        import logging

        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it logs every retry; one line is reported
        try:
            place = Path(hf_hub_download(name, "config.json"))
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:  # border: network down
            reason = one_line(str(error).strip().partition("\n")[0], 200)
            raise GrpoError(f"field {field}: the config of {name!r} cannot be downloaded: {reason}") from error
    try:
        config = json.loads(place.read_text())
    except FileNotFoundError:
        raise GrpoError(f"field {field}: {place.parent} has no config.json: not a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise GrpoError(f"field {field}: {place} cannot be read as JSON: {one_line(str(error), 200)}") from error
    if not isinstance(config, dict):
        raise GrpoError(f"field {field}: {place} is not a JSON object; copy the folder again")
    return config


def shape_of(config: Mapping[str, Any], name: str, field: str = "model") -> Shape:
    """From a Hugging Face config. Other families are treated as the Llama model of the same sizes."""

    def size(key: str, otherwise: int | None = None) -> int:
        value = otherwise if config.get(key) is None else config[key]
        if value is None:
            raise GrpoError(f"field {field}: config.json of {name} lacks the size {key}; use --params")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise GrpoError(
                f"field {field}: config.json of {name}: {key} must be a whole number of at least 1; got "
                f"{shown(value)}; correct it, or copy the folder again"
            )
        return value

    family = config.get("model_type", "")
    if not isinstance(family, str):
        raise GrpoError(
            f'field {field}: config.json of {name}: model_type must be text, such as "llama"; got {shown(family)}; '
            "correct it, or copy the folder again"
        )
    heads, hidden = size("num_attention_heads"), size("hidden_size")
    return Shape(
        vocabulary=size("vocab_size"),
        hidden=hidden,
        intermediate=size("intermediate_size"),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_width=size("head_dim", hidden // heads),
        tied=bool(config.get("tie_word_embeddings", family.startswith("gemma"))),
        qkv_bias=bool(config.get("attention_bias", family == "qwen2")),
        qk_norm=family.startswith("qwen3"),
        fused=family in FUSED and config.get("hidden_act", "silu") == "silu",
        padded=family if family in PADDED | PADDED_WHEN_LOADED or config.get("attn_logit_softcapping") else "",
        positions=limit_of_file(config),
    )


def typical_shape(size: str) -> Shape:
    """A typical model of about this many parameters.

    >>> shape = typical_shape("7B")
    >>> shape.layers, shape.hidden, round(shape.parameters / 1e9, 1)
    (32, 4096, 7.0)
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([bBmM])", size)
    parameters = float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else 0.0
    if not 1e7 <= parameters <= 2e12:
        raise GrpoError(f"field params: {shown(size)} is not a valid size; write one such as 135M, 7B or 70B")
    vocabulary, tied = (128256, parameters < 4e9) if parameters >= 1e9 else (49152, True)
    width = 128 if parameters >= 1e9 else 64
    # Depth and width grow together, at about 128 of width per layer: 12 · hidden² · layers parameters in the layers.
    body = parameters - vocabulary * (parameters * 128 / 12) ** (1 / 3) * (1 if tied else 2)
    heads = max(1, round((max(body, parameters / 4) * 128 / 12) ** (1 / 3) / width))
    if heads > 8:
        heads = 8 * round(heads / 8)
    hidden, kv_heads = heads * width, 8 if heads > 8 else max(n for n in (1, 2, 3) if heads % n == 0)
    layers = max(2, round(hidden / 128))
    attention = 2 * hidden * (hidden + kv_heads * width)
    # The feed-forward layers take the rest, so that the sum is the wanted size.
    left = (parameters - vocabulary * hidden * (1 if tied else 2)) / layers - attention
    return Shape(
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=max(64, 64 * round(left / (3 * hidden) / 64)),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_width=width,
        tied=tied,
    )
