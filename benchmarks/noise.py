"""Training without data: random weights, random prompts, and rewards that are noise."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo.tasks import TASKS
from grpo.types import Problem

LETTERS = "abcdefghijklmnop"
"""Tokens of the prompts. With three special ones they fit the smallest vocabulary, of 19 tokens."""


@dataclass(frozen=True)
class NoiseTask:
    """Prompts of one length. The reward is a hash of the text, so that rewards differ within a group."""

    prompt_tokens: int
    name: str = "noise"
    trusted: bool = True

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        rng = np.random.default_rng([seed, step + 1])
        prompts_PT = rng.choice(list(LETTERS), (count, self.prompt_tokens))
        return [Problem(f"{seed}/{step}/{i}", "".join(row), "a") for i, row in enumerate(prompts_PT)]

    def heldout(self) -> list[Problem]:
        return self.draw(-1, 2, 0)

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": 1.0 if text == problem.answer else float(zlib.crc32(text.encode()) % 2)}


def add_noise_task(prompt_tokens: int) -> None:
    """Makes the task known as "noise"."""
    TASKS["noise"] = lambda variant="": NoiseTask(prompt_tokens)


def letter_tokenizer(vocabulary: int) -> Any:
    """A tokenizer whose first tokens are LETTERS; the others decode to a word of their own.

    It is byte-level, because AutoTokenizer loads any tokenizer of a Qwen2 model as one.
    """
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "<eos>", *LETTERS]
    words += [f"t{token}" for token in range(len(words), vocabulary)]
    tokenizer = Tokenizer(BPE({word: token for token, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


def save_random_model(shape: str, device: str, folder: str) -> None:
    """Saves random bfloat16 weights of a shape and a tokenizer, as every trainer loads them."""
    import torch
    import transformers
    from shapes import SHAPES

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(SHAPES[shape], dtype=torch.bfloat16)
    model.save_pretrained(folder)
    letter_tokenizer(SHAPES[shape].vocab_size).save_pretrained(folder)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()  # for the trainers, which are other processes
