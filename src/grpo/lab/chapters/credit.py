"""Chapter `credit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {}
SOURCES: dict[str, Callable[..., Any]] = {}
TRIALS: dict[str, dict[str, Any]] = {}
