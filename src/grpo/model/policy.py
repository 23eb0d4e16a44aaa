"""The model: its log-probabilities, and the weights and files it is saved as. loading.py loads it."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint as recompute

from grpo.model import lora as adapter
from grpo.model import padded as unpacked
from grpo.model.attention import Layout, PackedLayout
from grpo.model.fused.weights import Weights, can_be_fused, can_flash
from grpo.model.hub.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from grpo.model.matmul import wide_product
from grpo.model.tensorfile import Mirror, write_tensors
from grpo.types import Batch, Problem

LOGITS_AT_ONCE = 2**24
"""Most logits that exist at a time: 64 MiB in float32."""


@dataclass(eq=False)
class Policy:
    """A causal language model with its tokenizer; training and rollout share these very weights."""

    model: Any
    tokenizer: Any
    name: str
    end_tokens: frozenset[int]
    version: int = 0
    """Optimizer steps taken so far; a completion remembers the version that sampled it."""
    compute: torch.dtype | None = None
    """What it computes in, where that is not the precision of its weights: 16 bits over float32 weights."""
    padded: bool = False
    """Whether the model cannot run packed rows, so that each completion is a padded row of its own (padded.py)."""
    forgetful: bool = False
    """Whether training keeps a block's input alone and computes the rest again in the backward pass."""
    token_budget: int = 0
    """Tokens per micro-batch, where free memory has decided; 0: as asked for."""
    adapter: Mapping[str, Any] | None = None
    """What adapter_config.json says of its adapter, where that alone is trained (adapter.py)."""
    _fused: Weights | None = None

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute or self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def stretch(self, divided_by: float) -> float:
        """What a loss, a sum over tokens divided by so much, is multiplied by on its way back, so that float16 can hold
        the gradients of single tokens; a power of two, which costs no bit when they are divided by it again. Else 1."""
        return 2.0 ** round(math.log2(divided_by)) if self.compute_dtype == torch.float16 else 1.0

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """A conversation goes through the tokenizer's chat template where it has one; all else is read as it stands."""
        if problem.messages and self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in problem.messages], add_generation_prompt=True, tokenize=False
            )
            # The template has written the special tokens itself.
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.tokenizer(problem.prompt)["input_ids"]

    def texts(self, rows: Sequence[np.ndarray]) -> list[str]:
        """What the rows of tokens say; by the tokenizer's own threads where it has some, in a fraction of the time."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or self.tokenizer.clean_up_tokenization_spaces:
            return self.tokenizer.batch_decode(rows)
        return backend.decode_batch([row.tolist() for row in rows], skip_special_tokens=False)

    @property
    def fused(self) -> Weights | None:
        """The working copy of its weights, made when first asked for; None for models of other blocks."""
        if self.padded or not can_be_fused(self.model):
            return None
        made, dtype = self._fused, self.compute_dtype
        if made is None or made.dtype != dtype or not made.places.hold(self.model):
            self._fused = made = Weights(self.model, dtype)
        return made

    @property
    def fused_in_training(self) -> Weights | None:
        """What training goes through, if that is `model.fused`: on a GPU, in 16 bits, with heads that flash attention
        takes."""
        if self.device.type != "cuda" or self.compute_dtype.itemsize != 2:
            return None
        weights = self.fused
        return weights if weights is not None and can_flash(weights.width, self.device) else None

    def fused_for(self, layout: Layout) -> Weights | None:
        """What this micro-batch goes through, if that is `model.fused`: inside every window."""
        segments, weights = getattr(layout, "segments", None), self.fused_in_training
        if segments is None or weights is None:
            return None
        seen = all(layer.window is None or layer.window >= segments.positions for layer in weights.layers)
        return weights if seen else None

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Last hidden states; inputs and output [rows, columns]."""
        if (weights := self.fused_for(layout)) is not None:
            from grpo.model.fused.block import Body

            assert isinstance(layout, PackedLayout)
            assert layout.segments is not None
            return Body(weights, self.forgetful).hidden(tokens[0], positions[0], layout.segments)[None]
        body = self.model.base_model
        with torch.autocast(self.device.type, self.compute, enabled=self.compute is not None):
            return body(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout).last_hidden_state

    def head_weight(self) -> torch.Tensor:
        """The output layer's [V, C], as it is computed with."""
        return self.model.get_output_embeddings().weight.to(self.compute_dtype)

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 at least, whatever the model's precision. `weight`: what `head_weight` gave, to make it once."""
        head = self.model.get_output_embeddings()
        if weight is None and self.device.type == "cpu" and self.compute is None:
            logits = head(hidden)
            return self._finished(logits if logits.dtype == torch.float64 else logits.float())
        weight = self.head_weight() if weight is None else weight
        logits = wide_product(hidden.to(weight.dtype), weight)
        return self._finished(logits if head.bias is None else logits + head.bias)

    @property
    def plain_head(self) -> bool:
        """Whether logits are the product with the output layer's weight and nothing else."""
        extras = ("logit_scale", "logits_scaling", "final_logit_softcapping")
        head = self.model.get_output_embeddings()
        return head.bias is None and not any(getattr(self.model.config, name, None) for name in extras)

    def _finished(self, logits: torch.Tensor) -> torch.Tensor:
        """What some models do to their logits last: Cohere multiplies, Granite divides, Gemma 2 caps them softly."""
        config = self.model.config
        if scale := getattr(config, "logit_scale", None):
            logits = logits * scale
        if scale := getattr(config, "logits_scaling", None):
            logits = logits / scale
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        return logits

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The weights that learn, by name: all of them, or the adapter's."""
        return [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]

    def weights(self) -> dict[str, torch.Tensor]:
        """By name, tied ones once: what `model.safetensors` of a Hugging Face folder holds, or an adapter's file."""
        if self.adapter:
            return adapter.tensors(self.model)
        named = {}
        seen: set[int] = set()
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                named[name] = tensor
        return named

    @cached_property
    def files(self) -> dict[str, bytes]:
        """All files of its Hugging Face folder but the weights. Training does not change them, and they are made once,
        because a tokenizer must not be asked from two threads."""
        with tempfile.TemporaryDirectory() as folder:
            if not self.adapter:
                self.model.config.save_pretrained(folder)
            if not self.adapter and self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            files = {str(file.relative_to(folder)): file for file in Path(folder).rglob("*") if file.is_file()}
            told = {ADAPTER_CONFIG: json.dumps(self.adapter, indent=2).encode()} if self.adapter else {}
            return told | {name: file.read_bytes() for name, file in files.items()}

    def save(self, folder: Path) -> None:
        """A plain Hugging Face folder."""
        write_model(folder, self.files, Mirror().copy(self.weights()))


def write_model(folder: Path, files: Mapping[str, bytes], weights: Mapping[str, torch.Tensor]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_tensors(folder / (ADAPTER_WEIGHTS if ADAPTER_CONFIG in files else "model.safetensors"), weights)


def predicting_states(policy: Policy, batch: Batch) -> torch.Tensor:
    """The hidden state that predicts each trained token, [A, C]."""
    if policy.padded:
        with torch.autocast(policy.device.type, policy.compute, enabled=policy.compute is not None):
            return unpacked.predicting_states(policy.model.base_model, batch)
    hidden_TC = policy.hidden(batch.tokens_T[None], batch.positions_T[None], batch.layout)[0]
    return torch.nn.functional.embedding(batch.source_A, hidden_TC)


def logprobs(
    policy: Policy,
    batch: Batch,
    temperature: float,
    *,
    hidden_AC: torch.Tensor | None = None,
    train_entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probability of each trained token, entropy of the distribution it was drawn from), both [N, L].

    Only the hidden states that predict a trained token meet the output layer, a chunk at a time, and each chunk is
    computed again in the backward pass: the logits [tokens, vocabulary] never exist whole. Where the loss does not use
    the entropy, say so with `train_entropy`: a gradient that never comes would keep all the recomputed chunks waiting.
    """
    if hidden_AC is None:
        hidden_AC = predicting_states(policy, batch)

    if policy.plain_head and (weights := policy.fused_for(batch.layout)) is not None:
        from grpo.model.fused.head import chosen_logprobs

        weight_VC = policy.model.get_output_embeddings().weight
        logp_A, entropy_A = chosen_logprobs(hidden_AC, weights.head, weight_VC, batch.target_A, temperature)
        return _grids(batch, logp_A, entropy_A)
    weight = policy.head_weight()

    def head(hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp_V = torch.log_softmax(policy.logits(hidden, weight) / temperature, dim=-1)
        measured_V = logp_V if train_entropy else logp_V.detach()
        return logp_V.gather(-1, target[:, None])[:, 0], -(measured_V.exp() * measured_V).sum(dim=-1)

    rows = max(1, LOGITS_AT_ONCE // policy.model.config.vocab_size)
    # A single chunk is small enough to be kept for the backward pass.
    forgetful = hidden_AC.requires_grad and len(hidden_AC) > rows
    chunks = [
        recompute(head, hidden, target, use_reentrant=False) if forgetful else head(hidden, target)
        for hidden, target in zip(hidden_AC.split(rows), batch.target_A.split(rows), strict=True)
    ]
    logp_A, entropy_A = (torch.cat(values) for values in zip(*chunks, strict=True))
    return _grids(batch, logp_A, entropy_A)


def _grids(batch: Batch, logp_A: torch.Tensor, entropy_A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros_NL = torch.zeros(batch.mask_NL.shape, dtype=logp_A.dtype, device=logp_A.device)
    return zeros_NL.masked_scatter(batch.mask_NL, logp_A), zeros_NL.masked_scatter(batch.mask_NL, entropy_A)
