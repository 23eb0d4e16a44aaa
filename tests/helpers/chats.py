"""Tokenizers of bytes with the chat templates of known models, and policies that have nothing but a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo.model.policy import Policy
from grpo.model.prompt import template_file

# The template of SmolLM2-135M-Instruct (Apache License 2.0): ChatML, which knows neither tools nor their role.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ENDS = {"llama3": "<|eot_id|>", "llama3_2": "<|eot_id|>", "phi3": "<|end|>"}
"""End tokens; of any other template <|im_end|>."""


def template_text(name: str) -> str:
    """smollm2, ours (the Qwen3 template that ships), or one of the models' templates that TRL keeps."""
    if name in ("smollm2", "ours"):
        return SMOLLM2 if name == "smollm2" else template_file("qwen3").read_text()
    return (Path(pytest.importorskip("trl").__file__).parent / f"chat_templates/{name}.jinja").read_text()


def chat_tokenizer(name: str, end: str = "", merges: Sequence[str] = ()) -> Any:
    """A token for each byte and each of the `merges`, such as "o t", and the special tokens of the template."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    pairs = [(left, right) for left, right in map(str.split, merges)]
    made = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(words)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=end or ENDS.get(name, "<|im_end|>"),
        bos_token="<|begin_of_text|>",
        additional_special_tokens=["<|im_start|>", "<|start_header_id|>", "<|end_header_id|>"],
    )
    tokenizer.chat_template = template_text(name)
    return tokenizer


def chat_policy(name: str, tools: Any = (), end: str = "", **template_kwargs: Any) -> Any:
    tokenizer = chat_tokenizer(name, end)
    ends = frozenset([tokenizer.eos_token_id])
    policy: Any = SimpleNamespace(
        tokenizer=tokenizer, end_tokens=ends, name=name, tools=tools, chat_template_kwargs=template_kwargs
    )
    policy.has_unknown = MethodType(Policy.has_unknown, policy)
    return policy
