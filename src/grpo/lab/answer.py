"""JSON responses of the lab."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

from grpo.record.columns import finite


class Answer(JSONResponse):
    """JSON without NaN or infinity, never cached: a run grows."""

    def __init__(self, content: Any, status_code: int = 200):
        super().__init__(content, status_code, headers={"Cache-Control": "no-store"})

    @staticmethod
    def text(content: Any) -> str:
        # Escapes, so that half a surrogate pair (the name of a file, a text of a trial) can be encoded too.
        return json.dumps(finite(content), allow_nan=False, separators=(",", ":"))

    def render(self, content: Any) -> bytes:
        return self.text(content).encode()
