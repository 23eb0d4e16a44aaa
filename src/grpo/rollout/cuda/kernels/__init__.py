"""Triton kernels of decoding on a GPU. Each rounds where the kernels of training round
(`model/fused/`), so that sampler and trainer agree.

Axis letters in addition to types.py: B rows being decoded, H query heads, K key heads, R query heads per key head,
D head width, Q prompt columns, I width of the feed-forward layer, J of gate and up concatenated, S parts of a sum,
T blocks of a table's row. A row is a completion
being decoded. Its keys and values lie in blocks that a table names, and so do those of its prompt, which it shares with
the other rows of its group.

`tests/rollout/test_kernels.py` compares every kernel with a float64 reference, on a CPU through Triton's interpreter.
"""

from grpo.rollout.cuda.kernels.compaction import compact
from grpo.rollout.cuda.kernels.join import Partial, join, splits
from grpo.rollout.cuda.kernels.linear import fits_few_rows, project, project_and_gate, project_in_parts
from grpo.rollout.cuda.kernels.one_program import fits_one_program, whole_attention
from grpo.rollout.cuda.kernels.residual import Norm, add_and_norm, embed_and_norm
from grpo.rollout.cuda.kernels.rotation import KeyValues, Rotation, rotate_and_store
from grpo.rollout.cuda.kernels.sampling import LOGITS_PER_PROGRAM, pick, sample_tokens, weigh
from grpo.rollout.cuda.kernels.shared_prompt import attend_to_own, attend_to_prompts, attention, prompt_parts
from grpo.rollout.cuda.kernels.uniforms import uniforms

__all__ = [
    "LOGITS_PER_PROGRAM",
    "KeyValues",
    "Norm",
    "Partial",
    "Rotation",
    "add_and_norm",
    "attend_to_own",
    "attend_to_prompts",
    "attention",
    "compact",
    "embed_and_norm",
    "fits_few_rows",
    "fits_one_program",
    "join",
    "pick",
    "project",
    "project_and_gate",
    "project_in_parts",
    "prompt_parts",
    "rotate_and_store",
    "sample_tokens",
    "splits",
    "uniforms",
    "weigh",
    "whole_attention",
]
