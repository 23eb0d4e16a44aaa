"""Models whose attention is more than ours run padded: they are found by comparing with the stock model."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from grpo.config import Config
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.packed_check import equals_stock
from grpo.model.packing import pack
from grpo.model.policy import logprobs
from grpo.model.positions import limit_in_words
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.training.preflight import check_agreement, check_lengths, model_assumptions
from grpo.training.sft import with_answers
from grpo.types import Problem
from helpers.policies import ARCHITECTURES, MORE_ARCHITECTURES, SHAPE, random_policy

NANO = Path(__file__).parents[2] / "src/grpo/model/hub/nano"
PACKED = [name for name in (*ARCHITECTURES, *MORE_ARCHITECTURES) if name not in ("bloom", "gemma2")]
PROBLEMS = [Problem("a", "1+2+3=", ""), Problem("b", "45+6=", "")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PACKED)
def test_models_that_run_packed_equal_the_stock_model(name: str, dtype: torch.dtype) -> None:
    assert equals_stock(random_policy(name, dtype))


@pytest.mark.parametrize("compute", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["nano", "tiny"])
def test_trained_models_equal_the_stock_model(name: str, compute: torch.dtype | None) -> None:
    assert equals_stock(load_policy(name, compute=compute))


def saved(folder: Path, config: transformers.PretrainedConfig, spread: float = 0.15) -> str:
    """A random model, spread wide, with nano's tokenizer."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(spread * torch.randn(weight.shape))
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(NANO).save_pretrained(folder)
    return str(folder)


ODD = {
    "sinks": transformers.GptOssConfig(**SHAPE, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
    "a mask of its own": transformers.DogeConfig(**SHAPE),
    "values of another width": transformers.DeepseekV3Config(
        **SHAPE | {"num_key_value_heads": 4},
        q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=2, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    ),
    "a window in transformers' mask only": transformers.Qwen2MoeConfig(
        **SHAPE, use_sliding_window=True, sliding_window=100, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    ),
    "the same, of another family": transformers.PhimoeConfig(
        **SHAPE, sliding_window=100, num_local_experts=4, num_experts_per_tok=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ODD))
def test_other_attention_runs_padded(tmp_path: Path, name: str) -> None:
    """And has the log-probabilities of transformers, in sampling and in training."""
    policy = load_policy(saved(tmp_path / "model", ODD[name]))
    assert policy.padded
    groups = Engine(policy).sample(PROBLEMS, 2, Sampling(seed=0, temperature=1.0, max_new_tokens=6))
    [batch] = pack(groups, 1000, padded=True)
    with torch.no_grad():
        trained_NL, _ = logprobs(policy, batch, 1.0)
    rows = [(group, done) for group in groups for done in group.completions]
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    for (group, done), found_L in zip(rows, trained_NL, strict=True):
        tokens = torch.from_numpy(np.concatenate([group.prompt_tokens, done.tokens]))[None]
        with torch.no_grad():
            logp_SV = stock(tokens).logits[0].log_softmax(-1)[len(group.prompt_tokens) - 1 : -1]
        expected_L = logp_SV.gather(-1, tokens[0, len(group.prompt_tokens) :, None])[:, 0]
        assert (found_L[: len(done)] - expected_L).abs().max() < 1e-4
        assert np.abs(done.logprobs - expected_L.numpy()).max() < 1e-4


@pytest.mark.parametrize("name", ["sinks", "a mask of its own"])
def test_a_padded_model_needs_no_pad_token(tmp_path: Path, name: str) -> None:
    config = copy.deepcopy(ODD[name])
    config.pad_token_id = None
    policy = load_policy(saved(tmp_path / "model", config))
    policy.tokenizer.pad_token = None
    assert not any("pad token" in line for line in model_assumptions(policy, PROBLEMS))
    groups = Engine(policy).sample(PROBLEMS, 2, Sampling(seed=0, temperature=1.0, max_new_tokens=6))
    alone = [
        Engine(policy).sample([one], 2, Sampling(seed=0, temperature=1.0, max_new_tokens=6))[0] for one in PROBLEMS
    ]
    for group, unpadded in zip(groups, alone, strict=True):  # the shorter prompt is padded only in company
        assert [done.tokens.tolist() for done in group.completions] == [d.tokens.tolist() for d in unpadded.completions]
    check_agreement(Config(), policy, groups)


PRECISIONS = pytest.mark.parametrize(
    ("dtype", "compute"), [(torch.float32, torch.bfloat16), (torch.bfloat16, None)], ids=["mixed", "bfloat16"]
)


@PRECISIONS
def test_a_window_that_one_layer_drops_is_found_in_16_bits(
    tmp_path: Path, dtype: torch.dtype, compute: torch.dtype | None
) -> None:
    """It changes hidden states by a few percent, as rounding to 16 bits does."""
    layers = 24
    config = transformers.Qwen2MoeConfig(
        **SHAPE | {"num_hidden_layers": layers}, use_sliding_window=True, sliding_window=100,
        layer_types=["full_attention"] * (layers - 1) + ["sliding_attention"], num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    assert load_policy(saved(tmp_path / "model", config, spread=0.05), dtype=dtype, compute=compute).padded


@PRECISIONS
@pytest.mark.parametrize(
    "config",
    [
        # Rounding selects other experts: in 16 bits, hidden states change by 10% and more.
        transformers.MixtralConfig(
            **SHAPE | {"num_hidden_layers": 24}, sliding_window=100, num_local_experts=4, num_experts_per_tok=2
        ),
        transformers.Gemma3TextConfig(**SHAPE | {"num_hidden_layers": 24}, head_dim=8, sliding_window=100),
    ],
    ids=["mixtral", "gemma3"],
)
def test_deep_models_run_packed_in_16_bits(
    tmp_path: Path, config: transformers.PretrainedConfig, dtype: torch.dtype, compute: torch.dtype | None
) -> None:
    policy = load_policy(saved(tmp_path / "model", config), dtype=dtype, compute=compute)
    assert not policy.padded
    assert (policy.model.dtype, policy.compute) == (dtype, compute)  # the comparison in float32 changes neither


@pytest.mark.parametrize(
    "config",
    [
        transformers.MixtralConfig(**SHAPE, sliding_window=100, num_local_experts=4, num_experts_per_tok=2),
        transformers.Gemma3TextConfig(
            **SHAPE, head_dim=8, sliding_window=100, layer_types=["sliding_attention", "full_attention"]
        ),
        # As long as the longest sequence, like that of Phi-3.5-MoE: not passed on, and without effect.
        transformers.PhimoeConfig(**SHAPE, sliding_window=256, num_local_experts=4, num_experts_per_tok=2),
    ],
)
def test_windows_without_effect_or_passed_on_run_packed(tmp_path: Path, config: transformers.PretrainedConfig) -> None:
    """The comparison shortens them, and leaves them as they were."""
    policy = load_policy(saved(tmp_path / "model", config))
    assert not policy.padded
    windows = [getattr(module, "sliding_window", None) for module in policy.model.modules()]
    assert {policy.model.config.sliding_window, *windows} - {None} == {config.sliding_window}


def test_heads_that_differ_between_layers_run_padded(tmp_path: Path) -> None:
    config = transformers.Gemma4TextConfig(**SHAPE, head_dim=8, global_head_dim=16, vocab_size_per_layer_input=48)
    policy = load_policy(saved(tmp_path / "model", config))
    assert policy.padded
    [group] = Engine(policy).sample(PROBLEMS[:1], 2, Sampling(seed=0, temperature=1.0, max_new_tokens=4))
    assert len(group.completions) == 2


def test_longrope_ends_at_its_original_length(tmp_path: Path) -> None:
    """Beyond it every token has another rotation."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 10000.0}
    config = transformers.Phi3Config(
        **SHAPE, original_max_position_embeddings=32, rope_parameters=rope | {"original_max_position_embeddings": 32}
    )
    policy = load_policy(saved(tmp_path / "model", config))
    assert check_lengths(policy, PROBLEMS, 20) == len(policy.prompt_tokens(PROBLEMS[0]))
    reason = (
        r"the 32 positions of \S+ \(its original length: LongRoPE rotates all tokens of longer sequences differently\)"
    )
    short = rf"leave no room for 30 new tokens in {reason}; the first is problem \S+ with \d+ tokens; lower max_\w+"
    with pytest.raises(GrpoError, match=f"{short}$"):
        check_lengths(policy, PROBLEMS, 30)
    with pytest.raises(GrpoError, match=rf"{short}, or leave longer prompts out \(--dataset\.max-prompt-tokens 2\)$"):
        check_lengths(policy, [replace(problem, place="rows.jsonl:1") for problem in PROBLEMS], 30)
    longer = [*PROBLEMS, Problem("d", "1+" * 20, "")]  # has no room for any token
    with pytest.raises(GrpoError, match=r"tokens; shorten the prompts$"):
        check_lengths(policy, longer, 30)
    with pytest.raises(GrpoError, match=f"prompt tokens and max_new_tokens 30 exceed {reason}; shorten the prompt"):
        Engine(policy).sample(PROBLEMS, 2, Sampling(seed=0, temperature=1.0, max_new_tokens=30))
    long = Problem("c", "1+2=", "3" * 40)
    with pytest.raises(GrpoError, match=f"tokens exceed {reason}; use a model with more positions, or another task$"):
        with_answers([long], policy)
    with pytest.raises(GrpoError, match=f"tokens exceed {reason}; shorten the row"):
        with_answers([replace(long, place="rows.jsonl:1")], policy)


def test_longrope_that_is_not_shortened_needs_no_reason() -> None:
    original = {"rope_type": "longrope", "original_max_position_embeddings": 128}
    config = SimpleNamespace(max_position_embeddings=128, rope_parameters=original)
    assert limit_in_words(config, "phi-3") == "the 128 positions of phi-3"
    config.max_position_embeddings = 256
    assert limit_in_words(config, "phi-3").startswith("the 128 positions of phi-3 (its original length:")
