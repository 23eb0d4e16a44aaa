"""Dependent launches: a GPU sets a kernel up while the one before it still runs, from Hopper on.

Every kernel of a decoding step waits before it reads what others write, and before it writes. So whoever waits for the
last kernel has waited for all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def wait(DEPENDENT: tl.constexpr):
    """Waits until the kernel before has ended. Until then a kernel may read weights only."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(DEPENDENT: tl.constexpr):
    """Lets the GPU set up the next kernel, once all programs have called this."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


def options(device: torch.device, dependent: bool) -> dict[str, Any]:
    """Launch options of a kernel that waits."""
    if not dependent or device.type != "cuda" or not _can_depend(device):
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}


@cache
def _can_depend(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
