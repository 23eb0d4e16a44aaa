"""Named tensors into a safetensors file, without copying them and without holding up other threads.

The format: 8 bytes with the header's length, the header as JSON (name -> dtype, shape, offsets), then the raw numbers.
The library's own writer makes a Python bytes object of every tensor first, which stops all other Python threads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Tensors in main memory; on the disk, and synced, when this returns."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            # As bytes, because numpy has no bfloat16. `write` lets other threads run.
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


class Mirror:
    """Copies of a run's tensors in main memory, made again and again in the same place.

    On a GPU the place is page-locked, so that a copy runs at the speed of the bus; making room for it is slow, and is
    done once.
    """

    def __init__(self) -> None:
        self._places: dict[str, torch.Tensor] = {}

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The numbers as they are now. They are overwritten by the next call."""
        for name, tensor in tensors.items():
            place = self._places.get(name)
            if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._places[name] = place
            place.copy_(tensor.detach(), non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return {name: self._places[name] for name in tensors}
