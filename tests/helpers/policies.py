"""Small random models of every architecture the engine runs, and a tokenizer of characters for them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

from grpo.config import Lora
from grpo.model.attention import NAME
from grpo.model.lora import adapt, adapted_layers
from grpo.model.policy import Policy

SHAPE = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


ARCHITECTURES: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=8),
    "mistral": transformers.MistralConfig(**SHAPE, head_dim=8),
    "mistral-window": transformers.MistralConfig(**SHAPE, head_dim=8, sliding_window=6),
    "gemma": transformers.GemmaConfig(**SHAPE, head_dim=8),
    "phi3": transformers.Phi3Config(**SHAPE),
    "phi": transformers.PhiConfig(**SHAPE),
}
MORE_ARCHITECTURES: dict[str, transformers.PretrainedConfig] = {
    # Linear layers of another kind, with weights the other way round, and learned positions.
    "gpt2": transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=256, vocab_size=48, bos_token_id=None, eos_token_id=1
    ),
    "cohere": transformers.CohereConfig(**SHAPE, logit_scale=0.3),
    "granite": transformers.GraniteConfig(**SHAPE, logits_scaling=3.0),
    "bloom": transformers.BloomConfig(vocab_size=48, hidden_size=32, n_layer=2, n_head=4, pad_token_id=0),
    "gemma2": transformers.Gemma2Config(**SHAPE, head_dim=8, sliding_window=6),
}
"""Those that few tests need. The last two cannot run packed rows."""


class CharacterTokenizer:
    eos_token_id = 1
    chat_template = None

    def __call__(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(character) % 46 for character in text]}

    def convert_ids_to_tokens(self, tokens: list[int]) -> list[str]:
        return [f"<{token}>" for token in tokens]

    def batch_decode(self, rows: Any) -> list[str]:
        return ["".join(chr(65 + int(token)) for token in row) for row in rows]


def random_policy(
    architecture: str,
    dtype: torch.dtype = torch.float32,
    attention: str = NAME,
    seed: int = 0,
    layers: int = SHAPE["num_hidden_layers"],
) -> Policy:
    """The same weights for the same seed, whatever the attention; spread wider than the usual initialisation, so that
    distributions are far from uniform and a wrong mask shows."""
    torch.manual_seed(seed)
    config = copy.deepcopy(
        (ARCHITECTURES | MORE_ARCHITECTURES)[architecture]
    )  # a model writes its attention into its config
    config.num_hidden_layers = layers
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, dtype=torch.float64).to(dtype))
    return Policy(model.eval(), CharacterTokenizer(), architecture, frozenset([1]))


RANK_3 = Lora(rank=3, alpha=6.0)


def random_adapter(architecture: str, dtype: torch.dtype = torch.float32, settings: Lora = RANK_3) -> Policy:
    """As if trained for a while: what the adapter adds is as large as the weights themselves."""
    policy = random_policy(architecture, dtype)
    monkey_name, policy.name = policy.name, "nano"  # a model that there is, for adapter_config.json
    adapt(policy, settings, seed=1)
    policy.name = monkey_name
    torch.manual_seed(5)
    with torch.no_grad():
        for layer in adapted_layers(policy.model):
            layer.lora_B["default"].weight.normal_(std=0.2)
    return policy
