"""The files of `nano`, which samples and trains in the page."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from grpo.model.hub import locate_model


def nano_files() -> dict[str, Any]:
    """Config, vocabulary (token -> id), and the weights: `packed` in base64."""
    folder = Path(locate_model("nano"))
    return {
        "config": json.loads((folder / "config.json").read_text()),
        "vocabulary": json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"],
        "weights": base64.b64encode(packed((folder / "model.safetensors").read_bytes())).decode(),
    }


def packed(file: bytes) -> bytes:
    """A safetensors file of float32 in 5/8 of its size: each number rounded to 24 bits (a relative error of at most
    2**-17), the first bytes of all numbers together, then the second, then the third; gzip."""
    start = 8 + int.from_bytes(file[:8], "little")
    bits_N = np.frombuffer(file, "<u4", offset=start).astype(np.uint64)
    rounded_N = (bits_N + 0x80).astype("<u4")
    bytes_N4 = rounded_N.view(np.uint8).reshape(-1, 4)
    return gzip.compress(file[:start] + bytes_N4[:, 1:].T.tobytes(), mtime=0)
