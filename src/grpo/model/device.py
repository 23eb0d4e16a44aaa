"""The machine a run is on: device, precision, threads, memory."""

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
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.model.policy import Policy
    from grpo.record.store import Run

SMALL_MODEL = 5_000_000
"""Parameters below which a second thread gains a fifth on an idle machine, and on a busy one loses tenfold: threads
that wait for one another spin."""


def prepare_machine(system: System, policy: Policy, run: Run | None = None) -> int:
    """Sets determinism and threads, and returns their number. A resumed run gets as many as it began with, because they
    decide the last bits."""
    parameters = sum(weight.numel() for weight in policy.model.parameters())
    fitting = 1 if parameters < SMALL_MODEL else os.cpu_count() or 1
    torch.set_num_threads(system.threads or (run.meta("threads") if run else None) or fitting)
    if policy.compute_dtype == torch.float16:
        # Partial sums of a product would be rounded to float16 before they are added.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if system.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return torch.get_num_threads()


@contextmanager
def little_to_collect(device: torch.device) -> Iterator[None]:
    """Meanwhile Python looks for garbage among new objects alone. Those there are by now, some 400,000, stay
    anyway; to go through them takes 0.2 s, every thirty steps or so."""
    if device.type == "cuda":
        gc.collect()  # its memory is too precious to be held by what nobody needs
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def pick_device(system: System) -> str:
    if system.device != "auto":
        if not re.fullmatch(r"cpu|cuda(:\d+)?", system.device):
            raise GrpoError(f"field system.device: no device {system.device!r}; use auto, cpu, cuda or cuda:1")
        if system.device.startswith("cuda") and not torch.cuda.is_available():
            raise GrpoError(f"field system.device: {system.device} asked for and there is no GPU; use cpu or auto")
        return system.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def free_memory(device: torch.device) -> int:
    """Bytes this process could take now; where the system does not tell, all there are."""
    if device.type == "cuda":
        held_idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held_idle
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(values["MemAvailable"].split()[0]) * 1024


def peak_memory(device: torch.device) -> float:
    """Bytes at the worst moment so far: of tensors on a GPU; on a CPU of the whole process, the program included."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def placement(system: System) -> dict[str, Any]:
    """Where a model is put, and in which precision it is kept and computes."""
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
