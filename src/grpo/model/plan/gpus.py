"""Memory and speed of well-known GPUs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grpo.config.leaf import shown
from grpo.errors import GrpoError

GIB = 2**30
USABLE = 0.93
"""Share of a GPU's memory for tensors; the driver's context and fragmentation take the rest."""

GPUS: Mapping[str, int] = {
    "b200": 180,
    "h200": 141,
    "h100": 80,
    "a100-80": 80,
    "a100-40": 40,
    "mi300x": 192,
    "l40s": 48,
    "a6000": 48,
    "5090": 32,
    "v100-32": 32,
    "4090": 24,
    "3090": 24,
    "a10": 24,
    "l4": 24,
    "4080": 16,
    "t4": 16,
    "3060": 12,
}
"""GiB, by the name people use, in small letters."""


@dataclass(frozen=True)
class Speed:
    """As its maker states it."""

    flops: float
    """16-bit matrix products with float32 sums, dense: operations per second."""
    bandwidth: float
    """Of its memory, bytes per second."""


SPEEDS: Mapping[str, Speed] = {
    name: Speed(tera * 1e12, giga * 1e9)
    for name, (tera, giga) in {
        "b200": (2250, 8000),
        "h200": (989, 4800),
        "h100": (989, 3350),
        "a100-80": (312, 2039),
        "a100-40": (312, 1555),
        "mi300x": (1307, 5300),
        "l40s": (362, 864),
        "a6000": (155, 768),
        "5090": (210, 1792),
        "v100-32": (125, 900),
        "4090": (165, 1008),
        "3090": (71, 936),
        "a10": (125, 600),
        "l4": (121, 300),
        "4080": (97, 717),
        "t4": (65, 320),
        "3060": (25, 360),
    }.items()
}
MEASURED_GPU = "h200"
"""The GPU whose seconds were measured; benchmarks/results.md."""


def gpu_memory(name: str) -> int:
    """Bytes of a GPU in the table, or of "24 GB".

    >>> gpu_memory("H200") // GIB, gpu_memory("24 GB") // GIB
    (141, 24)
    """
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b?", name.strip().lower())
    if size and float(size[1]) > 0:
        return round(float(size[1]) * GIB)
    short = _short(name)
    if short in GPUS:
        return GPUS[short] * GIB
    near = difflib.get_close_matches(short[:60], GPUS, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(GPUS)}"
    raise GrpoError(f'field gpu: no GPU is named {shown(name)}; {hint}; or give its memory ("24 GB")')


def timed_gpu(name: str) -> str:
    """The GPU whose speed a plan assumes: the named one, or the measured one where only a size is given.

    >>> timed_gpu("RTX 4090"), timed_gpu("24 GB")
    ('4090', 'h200')
    """
    short = _short(name)
    return short if short in SPEEDS else MEASURED_GPU


def _short(name: str) -> str:
    short = re.sub(r"^(nvidia|geforce|rtx|amd)[ -]?", "", re.sub(r"^(nvidia|geforce)[ -]?", "", name.strip().lower()))
    return short.replace(" ", "-").removesuffix("gb")
