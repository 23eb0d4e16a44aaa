"""Models that ship with the package. `scripts/make_tiny.py` made them."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = {"tiny": "arithmetic", "nano": "arithmetic:easy"}
"""Name of each embedded model, and the task it was made for."""


def embedded_folder(name: str) -> Path:
    return Path(__file__).parent / name
