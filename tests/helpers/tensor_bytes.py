"""Bytes of tensors on a CPU, from torch's own allocator: every allocation and release, those of kernels included."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any]) -> tuple[int, Any]:
    """The most that existed at a time beyond what existed before, and what the work returned."""
    gc.collect()  # what earlier work left would be freed during this one, and counted against it
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        result = work()
    events = recording.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes, initial=0)), result


def saved_bytes(work: Callable[[], Any], model: torch.nn.Module) -> int:
    """What autograd keeps for the backward pass, each storage once; the model's own weights do not count."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}  # the tensors themselves, or a freed address would be counted for two

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = work()
    del result
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in weights)
