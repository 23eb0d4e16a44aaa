"""The files of `nano`, which samples and trains in the page."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from grpo.model.hub import locate_model


def nano_files() -> dict[str, Any]:
    """Config, vocabulary (token -> id), and `model.safetensors` in base64."""
    folder = Path(locate_model("nano"))
    return {
        "config": json.loads((folder / "config.json").read_text()),
        "vocabulary": json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"],
        "weights": base64.b64encode((folder / "model.safetensors").read_bytes()).decode(),
    }
