"""The policy: a causal language model, its hidden states, logits and log-probs. load.py loads it, files.py saves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from grpo.model import lora, padded
from grpo.model.attention import Layout, PackedLayout
from grpo.model.fused.weights import Weights, can_be_fused, supports_flash_attention
from grpo.model.matmul import matmul_fp32_out
from grpo.model.positions import position_limit
from grpo.model.prompt import Schema, prompt_tokens
from grpo.types import Batch, Problem

LOGITS_AT_ONCE = 2**24
"""Most logits in memory at a time: 64 MiB in float32."""


@dataclass(eq=False)
class Policy:
    """A causal language model with its tokenizer. Training and rollout use the same weights."""

    model: Any
    tokenizer: Any
    name: str
    end_tokens: frozenset[int]
    version: int = 0
    """Optimizer steps taken; a group records the version that sampled it."""
    compute: torch.dtype | None = None
    """Precision of computation (16 bits) where it differs from that of the weights (float32)."""
    padded: bool = False
    """Whether the model cannot run packed rows, so that each completion is a padded row of its own (padded.py)."""
    gradient_checkpointing: bool = False
    """Whether training keeps only each block's input and recomputes the rest in the backward pass."""
    token_budget: int = 0
    """Tokens per micro-batch, where free memory decided it; 0: as configured."""
    adapter: Mapping[str, Any] | None = None
    """Content of adapter_config.json where only a LoRA adapter is trained (lora.py)."""
    files: dict[str, bytes] | None = None
    """Files of its Hugging Face folder except the weights; made by `files.model_files`."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template."""
    tools: Sequence[Schema] = ()
    """Schemas of the tools that prompts describe."""
    _fused: Weights | None = None

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute or self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def loss_scale(self, denominator: float) -> float:
        """Loss scale that keeps float16 gradients of single tokens in range, 1 for other precisions.

        It is the power of two nearest to the loss's `denominator`, so that unscaling is exact.
        """
        return 2.0 ** round(math.log2(denominator)) if self.compute_dtype == torch.float16 else 1.0

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return prompt_tokens(problem, self.tokenizer, self.chat_template_kwargs, self.tools)

    def texts(self, rows: Sequence[np.ndarray]) -> list[str]:
        """The rows of tokens decoded, by the tokenizer's own threads where it has them: several times as fast."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or self.tokenizer.clean_up_tokenization_spaces:
            return self.tokenizer.batch_decode(rows)
        return backend.decode_batch([row.tolist() for row in rows], skip_special_tokens=False)

    def has_unknown(self, tokens: Sequence[int]) -> bool:
        """Whether the tokens contain the unknown token, which stands for text that the model has no token for. False
        where the first or the end token is also named as the unknown one, as in GPT-2."""
        unknown, bos, eos = (getattr(self.tokenizer, f"{name}_token_id", None) for name in ("unk", "bos", "eos"))
        return unknown is not None and unknown not in {bos, eos, *self.end_tokens} and unknown in tokens

    @property
    def positions(self) -> int | None:
        """Most tokens of a sequence; None: any number."""
        return position_limit(self.model.config)

    @property
    def fused(self) -> Weights | None:
        """The working copy of the weights, made on first use; None for models of other blocks than Llama's."""
        if self.padded or not can_be_fused(self.model):
            return None
        made, dtype = self._fused, self.compute_dtype
        if made is None or made.dtype != dtype or not made.addresses.match(self.model):
            self._fused = made = Weights(self.model, dtype)
        return made

    @property
    def fused_in_training(self) -> Weights | None:
        """The working copy, where training uses `model.fused`: on a GPU, in 16 bits, with heads that flash attention
        supports."""
        if self.device.type != "cuda" or self.compute_dtype.itemsize != 2:
            return None
        weights = self.fused
        return weights if weights is not None and supports_flash_attention(weights.width, self.device) else None

    def fused_for(self, layout: Layout) -> Weights | None:
        """The working copy, where this micro-batch uses `model.fused`: no longer than any sliding window."""
        segments, weights = getattr(layout, "segments", None), self.fused_in_training
        if segments is None or weights is None:
            return None
        inside = all(layer.window is None or layer.window >= segments.positions for layer in weights.layers)
        return weights if inside else None

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Last hidden states; inputs and output [rows, columns]."""
        if (weights := self.fused_for(layout)) is not None:
            from grpo.model.fused.block import Body

            assert isinstance(layout, PackedLayout)
            assert layout.segments is not None
            body = Body(weights, self.gradient_checkpointing)
            return body.hidden(tokens[0], positions[0], layout.segments)[None]
        with torch.autocast(self.device.type, self.compute, enabled=self.compute is not None):
            return self.model.base_model(
                input_ids=tokens, position_ids=positions, use_cache=False, layout=layout
            ).last_hidden_state

    def head_weight(self) -> torch.Tensor:
        """The output layer's weight [V, C], in the precision of computation."""
        return self.model.get_output_embeddings().weight.to(self.compute_dtype)

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Logits in float32 or wider. `weight`: the result of `head_weight`, for callers that need it several times."""
        head = self.model.get_output_embeddings()
        if weight is None and self.device.type == "cpu" and self.compute is None:
            logits = head(hidden)
            return self._finished(logits if logits.dtype == torch.float64 else logits.float())
        weight = self.head_weight() if weight is None else weight
        logits = matmul_fp32_out(hidden.to(weight.dtype), weight)
        return self._finished(logits if head.bias is None else logits + head.bias)

    @property
    def plain_head(self) -> bool:
        """Whether logits are hidden · weightᵀ without bias, scale or cap."""
        extras = ("logit_scale", "logits_scaling", "lm_head_multiplier", "final_logit_softcapping")
        head = self.model.get_output_embeddings()
        return head.bias is None and not any(getattr(self.model.config, name, None) for name in extras)

    def _finished(self, logits: torch.Tensor) -> torch.Tensor:
        """The last operation on logits: Cohere, HyperCLOVA X and Falcon-H1 multiply, Granite divides, Gemma 2 caps."""
        config = self.model.config
        if scale := getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None):
            logits = logits * scale
        if scale := getattr(config, "logits_scaling", None):
            logits = logits * scale if config.model_type == "hyperclovax" else logits / scale
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        return logits

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters by name: all of the model's, or the adapter's."""
        return [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]

    def weights(self) -> dict[str, torch.Tensor]:
        """Tensors of `model.safetensors` by name, tied ones once; or of the adapter's file."""
        if self.adapter:
            return lora.tensors(self.model)
        named = {}
        seen: set[int] = set()
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                named[name] = tensor
        return named


def predicting_states(policy: Policy, batch: Batch) -> torch.Tensor:
    """The hidden state that predicts each sampled token, [A, C]."""
    if policy.padded:
        with torch.autocast(policy.device.type, policy.compute, enabled=policy.compute is not None):
            return padded.predicting_states(policy.model.base_model, batch)
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
    """(log-probability of each sampled token, entropy of the distribution it was sampled from), both [N, L].

    Logits are computed a chunk of tokens at a time, and again in the backward pass, unless their gradient is kept in 16
    bits (fused/head.py). Set `train_entropy` to False where the loss does not use the entropy: then the
    logits' gradient can be kept, and recomputed chunks do not wait in memory for a gradient of the entropy.
    """
    if hidden_AC is None:
        hidden_AC = predicting_states(policy, batch)

    if policy.plain_head and (weights := policy.fused_for(batch.layout)) is not None:
        from grpo.model.fused.head import token_logprobs

        weight_VC = policy.model.get_output_embeddings().weight
        keep = not (train_entropy or policy.gradient_checkpointing)
        found = token_logprobs(hidden_AC, weights.head, weight_VC, batch.target_A, temperature, keep_gradient=keep)
        return _grids(batch, *found)
    weight = policy.head_weight()

    def head(hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp_V = torch.log_softmax(policy.logits(hidden, weight) / temperature, dim=-1)
        measured_V = logp_V if train_entropy else logp_V.detach()
        return logp_V.gather(-1, target[:, None])[:, 0], -(measured_V.exp() * measured_V).sum(dim=-1)

    rows = max(1, LOGITS_AT_ONCE // policy.model.config.vocab_size)
    # A single chunk is small enough to keep for the backward pass.
    recompute = hidden_AC.requires_grad and len(hidden_AC) > rows
    chunks = [
        checkpoint(head, hidden, target, use_reentrant=False) if recompute else head(hidden, target)
        for hidden, target in zip(hidden_AC.split(rows), batch.target_A.split(rows), strict=True)
    ]
    logp_A, entropy_A = (torch.cat(values) for values in zip(*chunks, strict=True))
    return _grids(batch, logp_A, entropy_A)


def _grids(batch: Batch, logp_A: torch.Tensor, entropy_A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros_NL = torch.zeros(batch.mask_NL.shape, dtype=logp_A.dtype, device=logp_A.device)
    return zeros_NL.masked_scatter(batch.mask_NL, logp_A), zeros_NL.masked_scatter(batch.mask_NL, entropy_A)
