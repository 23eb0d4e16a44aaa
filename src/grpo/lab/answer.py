"""Answers of the lab: JSON without NaN or infinity, never cached."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


class Answer(JSONResponse):
    """JSON without NaN or infinity, never cached: a run grows."""

    def __init__(self, content: Any, status_code: int = 200):
        super().__init__(content, status_code, headers={"Cache-Control": "no-store"})

    @staticmethod
    def text(content: Any) -> str:
        return json.dumps(_finite(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    def render(self, content: Any) -> bytes:
        return self.text(content).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
