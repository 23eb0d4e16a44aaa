"""The machine of a run: device, precision, threads, memory."""

from __future__ import annotations

import gc
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo.config import System
from grpo.distributed.host import memory_left
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.model.policy import Policy

SMALL_MODEL = 5_000_000
"""Parameters below which one thread is used: a second makes an idle machine a fifth faster and a busy one ten times
slower, because waiting threads spin."""


def prepare_machine(system: System, policy: Policy, cores: int, kept: int = 0) -> int:
    """Sets determinism and the number of threads, and returns that number. `cores`: those for this process.

    A resumed run gets as many threads as it began with (`kept`): their number changes the last bits.
    """
    parameters = sum(weight.numel() for weight in policy.model.parameters())
    fitting = 1 if parameters < SMALL_MODEL else cores
    torch.set_num_threads(system.threads or kept or fitting)
    if policy.compute_dtype == torch.float16:
        # Otherwise partial sums of a matrix product are rounded to float16 before they are added.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if system.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return torch.get_num_threads()


@contextmanager
def frozen_garbage_collector(device: torch.device) -> Iterator[None]:
    """Freezes existing objects, so that the garbage collector scans only new ones.

    There are about 400,000; scanning them takes 0.2 s, about every thirty steps.
    """
    if device.type == "cuda":
        gc.collect()  # unreachable tensors may hold GPU memory
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def pick_device(system: System) -> str:
    if system.device != "auto":
        if not re.fullmatch(r"cpu|cuda(:\d+)?", system.device):
            raise GrpoError(f"field system.device: {system.device!r} is not a device; use auto, cpu, cuda or cuda:1")
        if system.device.startswith("cuda") and not torch.cuda.is_available():
            raise GrpoError(f"field system.device: {system.device}: no GPU was found; use cpu or auto")
        return system.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def free_memory(device: torch.device) -> int:
    """Free bytes; where the system does not report them, all bytes."""
    if device.type == "cuda":
        held_idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held_idle
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(min(int(values["MemAvailable"].split()[0]) * 1024, memory_left()))


def peak_memory(device: torch.device) -> float:
    """Peak bytes so far: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def placement(system: System) -> dict[str, Any]:
    """Device of a model, precision of its weights, and precision of computation."""
    device = pick_device(system)
    chosen = pick_precision(system, device)
    return {
        "device": device,
        "dtype": torch.bfloat16 if chosen == "bfloat16" else torch.float32,
        "compute": {"mixed": torch.bfloat16, "half": torch.float16}.get(chosen),
    }


def pick_precision(system: System, device: str) -> str:
    if system.dtype in ("mixed", "half") and not device.startswith("cuda"):
        raise GrpoError(
            f"field system.dtype: {system.dtype} computes in 16 bits, which is slow on {device}; use float32 or auto"
        )
    return system.dtype if system.dtype != "auto" else "mixed" if device.startswith("cuda") else "float32"
