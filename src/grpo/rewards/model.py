"""Reward models: the logit that a Hugging Face sequence classifier gives to a prompt and its completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from grpo.errors import GrpoError
from grpo.model.hub.network import skip_unreachable_hub
from grpo.model.hub.quiet import quiet_transformers
from grpo.model.positions import position_limit
from grpo.rewards.pool.invoke import Outcome, Request, validated

TOKENS_PER_BATCH = 16384
"""Padding included."""


class ModelReward:
    """Runs in the trainer's process and on its device. `name` is a folder or a Hugging Face id; with several labels,
    `owner/name#label` rewards the probability of that label."""

    def __init__(self, name: str, device: str = "cpu", part: str = ""):
        source, _, label = name.partition("#")
        if not Path(source).is_dir():
            skip_unreachable_hub()
        try:
            with quiet_transformers():
                self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
                self.model: Any
                self.model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                    source, use_safetensors=True, trust_remote_code=False, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:  # border: malformed files
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise GrpoError(f"field reward: cannot load the reward model {source!r}: {reason}") from error
        if missing := sorted(report["missing_keys"]):
            # transformers would fill these with random numbers.
            raise GrpoError(
                f"field reward: {source} is not a reward model: {len(missing)} weights are missing: {missing[0]}, …"
            )
        self.part = part or Path(source).name
        self.label = self._label(source, label)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # A decoder's logit is read at the last token before the padding.
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.tokenizer.padding_side, self.tokenizer.truncation_side = "right", "left"
        self.model.eval().to(device)

    def _label(self, source: str, label: str) -> int | None:
        names = {str(name): index for index, name in self.model.config.id2label.items()}
        if not label and len(names) == 1:
            return None
        if label not in names:
            example = f"model:{source}#{next(iter(names))}"
            raise GrpoError(
                f"field reward: {source} has the labels {', '.join(names)}; name the one to reward: {example}"
            )
        return names[label]

    def start(self, requests: Sequence[Request]) -> Callable[[], list[list[Outcome]]]:
        return lambda: self._outcomes(requests)

    def _outcomes(self, requests: Sequence[Request]) -> list[list[Outcome]]:
        values = iter(self.rewards([self.text(request, text) for request in requests for text in request.texts]))
        return [[validated(Outcome({self.part: next(values)})) for _ in request.texts] for request in requests]

    def text(self, request: Request, completion: str) -> str:
        """Prompt and completion; a conversation is formatted by the reward model's chat template where it has one."""
        problem = request.problem
        if problem.messages and self.tokenizer.chat_template:
            *before, last = problem.messages
            prefill = last["content"] if last["role"] == "assistant" else ""  # which the completion continues
            turns = before if prefill else problem.messages
            messages = [*map(dict, turns), {"role": "assistant", "content": prefill + completion}]
            return self.tokenizer.apply_chat_template(messages, tokenize=False)
        return problem.prompt + completion

    @torch.inference_mode()
    def rewards(self, texts: Sequence[str]) -> list[float]:
        """Rewards, computed in batches of texts of similar length."""
        limit = position_limit(self.model.config)
        rows = self.tokenizer(
            list(texts), add_special_tokens=False, truncation=limit is not None, max_length=limit, padding=False
        )["input_ids"]
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        values = [0.0] * len(rows)
        while order:
            count = max(1, TOKENS_PER_BATCH // max(1, len(rows[order[0]])))
            together, order = order[:count], order[count:]
            for row, value in zip(together, self._batch([rows[row] for row in together]), strict=True):
                values[row] = value
        return values

    def _batch(self, rows: Sequence[list[int]]) -> list[float]:
        padded = self.tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt").to(self.model.device)
        logits_NV = self.model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]).logits.float()
        rewards_N = logits_NV[:, 0] if self.label is None else logits_NV.softmax(-1)[:, self.label]
        return rewards_N.tolist()
