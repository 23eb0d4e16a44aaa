"""The model: load it, save it, and read log-probabilities off it."""

from __future__ import annotations

import logging as stdlib_logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch.utils.checkpoint import checkpoint as recompute

from grpo import unpacked
from grpo.attention import NAME as ATTENTION
from grpo.attention import Layout
from grpo.batch import pack
from grpo.budget import within_memory
from grpo.errors import GrpoError
from grpo.fused.weights import Weights, can_be_fused, weight_places
from grpo.models import locate_model
from grpo.models.folder import check_weight_files
from grpo.product import wide_product
from grpo.tensorfile import Mirror, write_tensors
from grpo.types import Batch, Completion, Group, Problem
from grpo.unpacked import can_be_packed

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
    """What it computes in, where that is not the precision of its weights: bfloat16 over float32 weights."""
    packs: bool = True
    """Whether it runs through the one attention function; if not, every completion stands alone (unpacked.py)."""
    forgetful: bool = False
    """Whether training keeps a block's input alone and computes the rest again in the backward pass."""
    token_budget: int = 0
    """Tokens per micro-batch, where free memory has decided; 0: as asked for."""
    _fused: Weights | None = None

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute or self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """A conversation goes through the tokenizer's chat template where it has one; all else is read as it stands."""
        if problem.messages and self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in problem.messages], add_generation_prompt=True, tokenize=False
            )
            # The template has written the special tokens itself.
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.tokenizer(problem.prompt)["input_ids"]

    @property
    def fused(self) -> Weights | None:
        """The working copy of its weights, made when first asked for; None for models of other blocks."""
        if not self.packs or not can_be_fused(self.model):
            return None
        made, dtype = self._fused, self.compute_dtype
        if made is None or made.dtype != dtype or made.places != weight_places(self.model):
            self._fused = made = Weights(self.model, dtype)
        return made

    def trains_fused(self, layout: Layout) -> bool:
        """Whether a micro-batch goes through `grpo.fused`: on a GPU, in bfloat16, with all of it in every window."""
        if self.device.type != "cuda" or self.compute_dtype != torch.bfloat16:
            return False
        segments = getattr(layout, "segments", None)
        return (
            segments is not None
            and self.fused is not None
            and all(layer.window is None or layer.window >= segments.positions for layer in self.fused.layers)
        )

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Last hidden states; inputs and output [rows, columns]."""
        if self.trains_fused(layout):
            from grpo.fused.block import Body

            return Body(self.fused, self.forgetful).hidden(tokens[0], positions[0], layout.segments)[None]
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

    def weights(self) -> dict[str, torch.Tensor]:
        """By name, tied ones once: what `model.safetensors` of a Hugging Face folder holds."""
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
            self.model.config.save_pretrained(folder)
            if self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {
                str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
            }

    def save(self, folder: Path) -> None:
        """A plain Hugging Face folder."""
        write_model(folder, self.files, Mirror().copy(self.weights()))


def write_model(folder: Path, files: Mapping[str, bytes], weights: Mapping[str, torch.Tensor]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_tensors(folder / "model.safetensors", weights)


def load_policy(
    name: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32, compute: torch.dtype | None = None
) -> Policy:
    """`name` is an embedded model, a Hugging Face folder or a Hugging Face id."""
    source = locate_model(name)
    if Path(source).is_dir():
        check_weight_files(Path(source))
    try:
        with _quiet_transformers():
            # One small file first: offline, this fails once and soon, not once for every file there could be.
            config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
            packs = can_be_packed(_model_class(config), config)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation=ATTENTION if packs else None,
                output_loading_info=True,
                use_safetensors=True,  # the other format is pickle, which runs whatever code a stranger put in it
                trust_remote_code=False,
            )
    # The border to files people made: whatever is wrong with the folder is told in one line.
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GrpoError(f"field model: cannot load {name!r}: {reason}") from error
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    missing = sorted(set(report["missing_keys"]) - tied)
    if missing:
        # transformers would fill these with random numbers and go on.
        raise GrpoError(
            f"field model: {name!r} lacks {len(missing)} weights, the first is {missing[0]}; copy the folder again"
        )
    # Dropout would make the trainer's log-probabilities disagree with the sampler's.
    model.eval().to(device)
    return Policy(model, tokenizer, name, _end_tokens(model, tokenizer, name), compute=compute, packs=packs)


def _model_class(config: Any) -> Any:
    """None where transformers has none for it, which loading tells better."""
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    return mapping.get(type(config), None)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """It draws bars and prints reports of its own; what matters in them is said in one line here."""
    logging = transformers.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hub = stdlib_logging.getLogger("huggingface_hub")
    hub_level = hub.level
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if shown:
            logging.enable_progress_bar()


def _end_tokens(model: Any, tokenizer: Any, name: str) -> frozenset[int]:
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = tokenizer.eos_token_id if ends is None else ends
    if ends is None:
        raise GrpoError(f"field model: {name!r} defines no end token (eos_token_id), so no completion could end")
    return frozenset([ends] if isinstance(ends, int) else ends)


def predicting_states(policy: Policy, batch: Batch) -> torch.Tensor:
    """The hidden state that predicts each trained token, [A, C]."""
    if not policy.packs:
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

    if policy.trains_fused(batch.layout) and policy.plain_head:
        from grpo.fused.head import chosen_logprobs

        weight_VC = policy.model.get_output_embeddings().weight
        logp_A, entropy_A = chosen_logprobs(hidden_AC, policy.fused.head, weight_VC, batch.target_A, temperature)
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


@torch.no_grad()
def annotate(
    groups: Sequence[Group],
    read: Callable[[Batch], torch.Tensor],
    add: Callable[[Completion, np.ndarray], Completion],
    *,
    policy: Policy,
    token_budget: int,
) -> list[Group]:
    """Every completion with what `read` finds for its tokens, put where `add` says, from one packed forward."""

    def rows(tokens_at_once: int) -> list[np.ndarray]:
        found = []
        for batch in pack(groups, tokens_at_once, policy.device):
            lengths = batch.mask_NL.sum(dim=1).tolist()
            found += [row[:length] for row, length in zip(read(batch).float().cpu().numpy(), lengths, strict=True)]
        return found

    values = iter(within_memory(policy, token_budget, rows))
    return [
        replace(group, completions=tuple(add(completion, next(values)) for completion in group.completions))
        for group in groups
    ]
