"""Answers of the lab's routes, recorded for pages without a server."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Match, Route

from grpo.errors import GrpoError
from grpo.lab.server import make_app

DIGITS = 8
"""Significant digits of recorded numbers; float32 has 7."""


def key(url: str) -> str:
    """The key of a request: the order of its parameters does not matter. Equal to `keyOf` of offline/recorded.js.

    >>> key("/api/runs/a%20b?points=3&names=x%2Cy")
    '/api/runs/a b?names=x,y&points=3'
    """
    path, _, query = url.partition("?")
    pairs = sorted(f"{name}={value}" for name, value in parse_qsl(query, keep_blank_values=True))
    return unquote(path) + ("?" + "&".join(pairs) if pairs else "")


class Recorder:
    """Asks the lab's routes in this process and keeps the answers in chunks, by the start of their path."""

    def __init__(self, runs: Path):
        app = make_app(runs).app
        assert isinstance(app, Starlette)
        self.app, self.runs = app, runs
        self.chunks: dict[str, Chunk] = {}

    def ask(self, url: str) -> Any:
        status, answer = self._answer(url)
        if status != 200:
            raise GrpoError(f"lab: {url}: {answer['error']}")
        return answer

    def _answer(self, url: str) -> tuple[int, Any]:
        path, _, query = url.partition("?")
        scope = {"type": "http", "method": "GET", "path": unquote(path), "query_string": query.encode(), "headers": []}
        for route in self.app.routes:
            match, found = route.matches({**scope, "root_path": ""})
            if isinstance(route, Route) and match is Match.FULL:
                response = route.endpoint(Request({**scope, **found, "app": self.app}))
                return response.status_code, json.loads(response.body)
        raise GrpoError(f"lab: no answer has the address {url}")

    def record(self, urls: Iterable[str]) -> None:
        for url in urls:
            self.keep(url, self.ask(url))

    def record_also_refusals(self, urls: Iterable[str]) -> None:
        """A refusal is recorded as the page gets it from the server: {"error": why}."""
        for url in urls:
            self.keep(url, self._answer(url)[1])

    def keep(self, url: str, answer: Any) -> None:
        self.chunks.setdefault(_start(key(url)), Chunk()).add(key(url), answer)

    def index(self) -> dict[str, str]:
        """The start of a path -> the name of its chunk."""
        return {start: start.removeprefix("/api/").replace("/", "-").replace("~", "") for start in self.chunks}

    def scripts(self) -> dict[str, str]:
        """The name of each chunk -> the script that puts it into the page. Base64 has no character that HTML minds."""
        return {
            name: f"(window.grpoChunks ??= {{}})[{json.dumps(name)}] = {json.dumps(self.chunks[start].packed())};\n"
            for start, name in self.index().items()
        }

    def index_script(self) -> str:
        return f"window.grpoIndex = {json.dumps(self.index(), separators=(',', ':'))};\n"


class Chunk:
    """Answers by key; equal ones are kept once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.texts: dict[str, int] = {}

    def add(self, key: str, answer: Any) -> None:
        text = json.dumps(_rounded(answer), separators=(",", ":"))
        self.places[key] = self.texts.setdefault(text, len(self.texts))

    def packed(self) -> str:
        text = f'{{"keys":{json.dumps(self.places)},"answers":[{",".join(self.texts)}]}}'
        return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _start(key: str) -> str:
    """The part of a key that names its chunk: one per answer of a chapter, and per view and step of a run."""
    parts = key.partition("?")[0].split("/")
    return "/".join(parts[: 6 if parts[2] == "runs" and parts[4:5] == ["steps"] else 5])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
