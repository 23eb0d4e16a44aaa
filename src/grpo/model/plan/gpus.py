"""Memory of well-known GPUs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

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


def gpu_memory(name: str) -> int:
    """Bytes of a GPU in the table, or of "24 GB".

    >>> gpu_memory("H200") // GIB, gpu_memory("24 GB") // GIB
    (141, 24)
    """
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b?", name.strip().lower())
    if size and float(size[1]) > 0:
        return round(float(size[1]) * GIB)
    short = re.sub(r"^(nvidia|geforce|rtx|amd)[ -]?", "", re.sub(r"^(nvidia|geforce)[ -]?", "", name.strip().lower()))
    short = short.replace(" ", "-").removesuffix("gb")
    if short in GPUS:
        return GPUS[short] * GIB
    near = difflib.get_close_matches(short[:60], GPUS, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(GPUS)}"
    raise GrpoError(f'field gpu: no GPU is named {shown(name)}; {hint}; or give its memory ("24 GB")')
