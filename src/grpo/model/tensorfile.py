"""Named tensors in safetensors files: written without copying them and without blocking other threads.

The format: 8 bytes with the header's length, the header as JSON (name -> dtype, shape, offsets), then the raw numbers.
The library's writer makes a Python bytes object of every tensor first, which blocks all other Python threads.

Tensors that are larger together than `LARGEST_FILE` are cut into several files with an index, as Hugging Face does:
model-00001-of-00002.safetensors, model-00002-of-00002.safetensors, model.safetensors.index.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

LARGEST_FILE = 64 * 2**30
"""Bytes of tensors in one file; a larger tensor has a file of its own."""
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


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors in main memory to NAME.safetensors, or to several files and their index."""
    parts = cut(tensors, LARGEST_FILE)
    if len(parts) == 1:
        return write_tensors(path, tensors)
    files = [f"{path.stem}-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    for file, part in zip(files, parts, strict=True):
        write_tensors(path.with_name(file), part)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, part in zip(files, parts, strict=True) for name in part},
    }
    index_of(path).write_text(json.dumps(index, indent=1))


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of NAME.safetensors, or of the files in its index. The files are mapped into memory, not read."""
    from safetensors.torch import load_file

    if path.exists():
        return load_file(path)
    files = set(json.loads(index_of(path).read_text())["weight_map"].values())
    return {name: tensor for file in sorted(files) for name, tensor in load_file(path.with_name(file)).items()}


def index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")


def cut(tensors: Mapping[str, torch.Tensor], limit: int) -> list[dict[str, torch.Tensor]]:
    """The tensors in order, in parts of at most `limit` bytes.

    >>> [list(part) for part in cut({name: torch.zeros(n) for name, n in zip("abcd", (1, 2, 5, 1))}, 12)]
    [['a', 'b'], ['c'], ['d']]
    """
    parts: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if parts[-1] and filled + tensor.nbytes > limit:
            parts.append({})
            filled = 0
        parts[-1][name] = tensor
        filled += tensor.nbytes
    return parts


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors in main memory, and syncs the file to disk."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            # As bytes: numpy has no bfloat16. `write` releases Python's lock.
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


class Mirror:
    """Copies of a run's tensors in main memory, in buffers that are reused.

    On a GPU the buffers are page-locked, so that a copy runs at the speed of the bus. Allocating them is slow and done
    once.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}
        """By file and name."""

    def copy(self, files: Mapping[str, Iterable[tuple[str, torch.Tensor]]]) -> dict[str, dict[str, torch.Tensor]]:
        """Copies of the named tensors of each file as they are now. The next call overwrites them."""
        copies = {
            file: {name: self._copy((file, name), tensor) for name, tensor in tensors}
            for file, tensors in files.items()
        }
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return copies

    def _copy(self, place: tuple[str, str], tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[place] = buffer
        return buffer.copy_(tensor.detach(), non_blocking=True)
