"""The planned memory of a forward pass without gradient through fused blocks is what their tensors take.

Kernels and matmuls are replaced by allocations in the precisions of a GPU: without one, kernels are interpreted in
memory of their own, and a matmul rounds before it widens.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from grpo.model.packing import Batch, pack
from grpo.model.plan import fused, shape_of
from grpo.model.plan.work import MicroBatch
from grpo.model.policy import Policy, logprobs
from helpers.groups import random_groups
from helpers.policies import ARCHITECTURES, NAME, CharacterTokenizer
from helpers.tensor_bytes import peak_bytes

pytest.importorskip("triton")

SIZES = {"hidden_size": 128, "head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 4}


def result_of_matmul(
    a: torch.Tensor, b: torch.Tensor, *, onto: Any = None, dtype: Any = None, in_place: bool = False
) -> torch.Tensor:
    wanted = dtype or a.dtype if onto is None else onto.dtype
    return onto if in_place else a.new_empty(len(a), b.shape[1], dtype=wanted)


def result_of_attention(
    qkv_TE: torch.Tensor, segments: Any, heads: int, key_heads: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    T, E = qkv_TE.shape
    return qkv_TE.new_empty(T, heads, E // (heads + 2 * key_heads)), qkv_TE.new_empty(heads, T, dtype=torch.float32)


def float32s(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.new_empty(count, dtype=torch.float32)


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in {
        "weights.matmul": result_of_matmul,
        "head.matmul": result_of_matmul,
        "weights.linear": lambda x, weight, bias: x.new_empty(len(x), len(weight)),
        "block.attend": result_of_attention,
        "kernels.norm": lambda x, weight, eps, dtype: (x.new_empty(x.shape, dtype=dtype), float32s(x, len(x))),
        "kernels.norm_heads": lambda x, weight, eps, heads, out: float32s(x, len(x) * heads),
        "kernels.rotate": lambda x, *_: torch.empty_like(x, dtype=torch.bfloat16),
        "kernels.gated": lambda x: x.new_empty(len(x), x.shape[1] // 2),
        "kernels.token_logprobs": lambda x, *_: 3 * (float32s(x, len(x)),),
    }.items():
        monkeypatch.setattr(f"grpo.model.fused.{name}", stand_in)
    monkeypatch.setattr(Policy, "fused_for", lambda self, layout: self.fused)


def score(policy: Policy, batch: Batch) -> int:
    assert policy.fused is not None
    policy.fused.refresh()
    policy.fused.rotation(batch.layout.segments.positions)
    with torch.no_grad():
        return peak_bytes(lambda: logprobs(policy, batch, 1.0))[0]


@pytest.mark.parametrize(
    ("architecture", "feed_forward", "vocabulary"),
    [("llama", 512, 300), ("qwen2", 748, 300), ("qwen3", 384, 300), ("llama", 512, 3000)],
)
@pytest.mark.usefixtures("allocations")
def test_a_forward_pass_without_gradient(architecture: str, feed_forward: int, vocabulary: int) -> None:
    """Blocks take most with a small vocabulary, logits with a large one. Up to 16 bytes a token, of positions, tokens
    and log-probabilities, are not planned."""
    sizes = SIZES | {"intermediate_size": feed_forward, "vocab_size": vocabulary}
    config = copy.deepcopy(ARCHITECTURES[architecture])
    config.update(sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    policy = Policy(model.eval(), CharacterTokenizer(), architecture, frozenset([1]))
    policy.compute = torch.bfloat16
    [batch] = pack(random_groups(4, 8, 20, 60), 100_000)
    tokens, trained = len(batch.tokens_T), len(batch.target_A)
    size = MicroBatch(prompts=1, completions=1, prompt_tokens=tokens - trained, new_tokens=trained, count=1)
    planned = fused.passing(shape_of(config.to_dict(), architecture), size, size=2, sums=4)
    assert 0 <= score(policy, batch) - planned <= 16 * tokens
