"""Generated HTTP requests to the lab: each is answered, and an error is one line of JSON or text."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from grpo.lab.server import make_app
from helpers.fuzz import Fuzz, budget
from helpers.http_requests import HttpRequest, generated, send

COUNT = budget(2_100)
SEED = 17
BUSY = 503  # of a record that is being written
NO_SUCH_RANGE = 416  # of a file; its answer has no body


def answered(fuzz: Fuzz, number: int, app: Any, request: HttpRequest) -> None:
    answer = asyncio.run(send(app, request))
    assert not answer.error, answer.error
    assert 200 <= answer.status < 500 or answer.status == BUSY
    body = answer.body.decode()
    if answer.status >= 400 and answer.status != NO_SUCH_RANGE and request.method != "HEAD":
        kind = answer.headers["content-type"]
        if kind == "application/json":
            fuzz.message(number, json.loads(body)["error"])
        elif kind.startswith("text/plain"):
            fuzz.message(number, body)


def test_every_request_is_answered(tmp_path: Path) -> None:
    fuzz = Fuzz("HTTP requests", "")
    app = make_app(tmp_path)
    page = asyncio.run(send(app, HttpRequest(b"/learn"))).body.decode()
    [token] = re.findall(r'name="page-token" content="([^"]+)"', page)
    for number, request in enumerate(generated(SEED, COUNT, token)):
        fuzz.call(number, lambda number=number, request=request: answered(fuzz, number, app, request))
    fuzz.report(at_least=COUNT)
