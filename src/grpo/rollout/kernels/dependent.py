"""A kernel that is started while the one before it still runs, and waits for its results on the GPU.

Starting a kernel takes longer than many of the small ones last. With programmatic dependent launch the next one has
started, and may have asked for its weights, when the last program of the one before ends. Whatever an earlier kernel
wrote may be read, and anything be written, after the wait alone; since every program of every such kernel waits, a
kernel's end means the end of all before it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

DEPENDENT_LAUNCH = True
"""Off only to measure what it gains: 0.77 ms a token of 32 rows instead of 0.82, 0.71 instead of 0.83 of 8."""


def dependent(device: torch.device) -> dict[str, Any]:
    """Options of such a launch: from Hopper on; elsewhere, kernels start one after another."""
    on = DEPENDENT_LAUNCH and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"DEPENDENT": True, "launch_pdl": True} if on else {"DEPENDENT": False}


@triton.jit
def _wait(DEPENDENT: tl.constexpr):
    """For the kernel before to end; the one after may start and wait from now on."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
