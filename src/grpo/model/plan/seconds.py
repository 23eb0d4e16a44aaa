"""Predicted seconds of a step's phases on one GPU.

The constants were measured on one H200 (benchmarks/results.md); a test compares the prediction with every measured
rollout and update. Other GPUs: the same constants with their own peak and bandwidth, not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from grpo.model.plan.compute import PackedSize, flops, update_flops
from grpo.model.plan.gpus import Speed
from grpo.model.plan.shape import Shape
from grpo.model.plan.work import Needs, Work

SHARE_OF_PEAK: Mapping[int, float] = {576: 0.255, 896: 0.415, 1536: 0.49}
"""Of a GPU's operations per second in an update, by hidden width: SmolLM2-135M, Qwen2.5-0.5B, Qwen2.5-1.5B. Updates of
LoRA adapters reach 0.49 too (measured with Qwen2.5-7B)."""
SHARE_DECODING = 1.3
"""Share of the peak in forward passes of a rollout, relative to an update."""
SHARE_OF_BANDWIDTH = 0.9
"""A copy on an H200 moves 4.3 of its 4.8 TB/s."""
LAYER_SECONDS = 26e-6
"""Launching a layer's kernels for one token of all rows; with few rows, and small models, 19e-6."""
LOGITS_PASSES = 4
"""How often the logits of a row are read or written while a token is sampled."""
FLOAT32, SIXTEEN_BITS = 4, 2


def seconds_of(shape: Shape, work: Work, needs: Needs, speed: Speed, *, lora: int = 0) -> dict[str, float]:
    """Seconds of one GPU by phase. Rewards and the record are not counted, nor are evaluations."""
    operations = flops(shape, work, needs, lora=lora)
    rate = _update_rate(shape, speed)
    scored = operations["old policy"] + operations["reference"] + operations["critic"]
    return {
        "rollout": rollout_seconds(shape, work, speed),
        "score": scored / rate,
        "update": operations["update"] / rate,
    }


def update_seconds(shape: Shape, size: PackedSize, speed: Speed, *, lora: int = 0) -> float:
    """An update of given groups, whose completions may have any lengths."""
    return update_flops(shape, size, lora=lora) / _update_rate(shape, speed)


def rollout_seconds(shape: Shape, work: Work, speed: Speed) -> float:
    """Every token costs a + b·rows: fewer rows save only b, so a rollout does not scale with the number of GPUs."""
    per_token, per_row = decoding(shape, work, speed)
    prefill = 2.0 * shape.linear_parameters * work.prompts * work.prompt_tokens / _decoding_rate(shape, speed)
    steps = work.new_tokens * work.completions / work.rows_of_a_step
    return steps * per_token + work.new_tokens * work.completions * per_row + prefill


def decoding(shape: Shape, work: Work, speed: Speed) -> tuple[float, float]:
    """(a, b): seconds of a token for all rows together, and for each row; in the middle of the completions."""
    weights, bandwidth = shape.linear_parameters + shape.embedding, SHARE_OF_BANDWIDTH * speed.bandwidth
    launches_and_weights = LAYER_SECONDS * shape.layers + SIXTEEN_BITS * weights / bandwidth
    # A group's prompt is read once.
    cached = work.prompt_tokens / work.group_size + work.new_tokens / 2
    keys_values = 2 * SIXTEEN_BITS * shape.layers * shape.kv_width * cached
    logits = LOGITS_PASSES * FLOAT32 * shape.vocabulary
    return launches_and_weights, (keys_values + logits) / bandwidth + 2.0 * weights / _decoding_rate(shape, speed)


def share_of_peak(hidden: int) -> float:
    """Interpolated between the measured widths, and constant beyond them.

    >>> [round(share_of_peak(width), 3) for width in (64, 720, 1536, 8192)]
    [0.255, 0.336, 0.49, 0.49]
    """
    widths = sorted(SHARE_OF_PEAK)
    below = max((width for width in widths if width <= hidden), default=widths[0])
    above = min((width for width in widths if width >= hidden), default=widths[-1])
    if below >= above:
        return SHARE_OF_PEAK[below if hidden >= below else above]
    place = math.log(hidden / below) / math.log(above / below)
    return SHARE_OF_PEAK[below] + place * (SHARE_OF_PEAK[above] - SHARE_OF_PEAK[below])


def _update_rate(shape: Shape, speed: Speed) -> float:
    return speed.flops * share_of_peak(shape.hidden)


def _decoding_rate(shape: Shape, speed: Speed) -> float:
    return speed.flops * SHARE_DECODING * share_of_peak(shape.hidden)
