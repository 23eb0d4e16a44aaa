"""Models with the shapes of well-known ones and random weights: speed and memory depend only on the shape."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from grpo.model.attention import NAME
from grpo.model.policy import Policy


def _qwen2(hidden: int, inner: int, layers: int, heads: int, key_heads: int, **more: Any) -> transformers.Qwen2Config:
    return transformers.Qwen2Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=32768,
        eos_token_id=2,
        **({"vocab_size": 151936, "tie_word_embeddings": True} | more),
    )


SHAPES = {
    "smollm2-135m": transformers.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        eos_token_id=2,
    ),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4, vocab_size=152064, tie_word_embeddings=False),
    "tiny": transformers.LlamaConfig(  # the embedded model
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        vocab_size=19,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        eos_token_id=18,
    ),
    # For trying out a benchmark; too small for speed figures.
    "smallest": _qwen2(64, 128, 2, 4, 2, vocab_size=512),
}


class NoTokenizer:
    """Reads prompts that are token numbers, such as "3 17 5"; decodes everything to empty text."""

    eos_token_id = 2
    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def batch_decode(self, rows: Any) -> list[str]:
        return ["" for _ in rows]


COMPUTE_DTYPES = {"mixed": torch.bfloat16, "half": torch.float16}
"""Dtype of matmuls by system.dtype, for those whose weights are float32."""


def random_policy(shape: str, device: str, dtype: str, attention: str = NAME) -> Policy:
    """A policy with random weights. It has no end token: every completion has full length. `dtype`: as system.dtype."""
    torch.manual_seed(0)
    with torch.device(device):
        stored = torch.float32 if dtype in COMPUTE_DTYPES else getattr(torch, dtype)
        model = transformers.AutoModelForCausalLM.from_config(
            SHAPES[shape], attn_implementation=attention, dtype=stored
        )
    compute = COMPUTE_DTYPES.get(dtype)
    return Policy(model.eval(), NoTokenizer(), shape, frozenset([-1]), compute=compute)
