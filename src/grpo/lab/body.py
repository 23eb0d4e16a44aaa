"""JSON that a page of the lab sends."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from grpo.errors import GrpoError

MOST_BYTES = 20_000


class BodyError(GrpoError):
    """A request body that is too large or is not JSON."""


async def json_body(request: Request, name: str) -> Any:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise BodyError(f"{name}: more than {MOST_BYTES:,} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as problem:  # border: untrusted request body
        raise BodyError(f"{name}: not valid JSON, or nested too deeply") from problem
