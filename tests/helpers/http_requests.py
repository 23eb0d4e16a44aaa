"""Hostile HTTP requests for the lab, written by hand and generated, and a client that sends them in process.

Requests go to the ASGI app as uvicorn passes them on: bytes that no HTTP library has checked or corrected.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import grpo.lab
from grpo.lab import whatif
from grpo.lab.api import ABOUT_A_RUN
from grpo.lab.chapters import CHAPTERS, chapter

HOST = b"127.0.0.1:8765"
ORIGIN = b"http://" + HOST
EXAMPLE = "~tiny-arithmetic"


@dataclass(frozen=True)
class HttpRequest:
    target: bytes
    method: str = "GET"
    headers: tuple[tuple[bytes, bytes], ...] = ((b"host", HOST),)
    body: bytes = b""


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes
    error: str = ""
    """What the app raised; empty if it answered by itself."""


async def send(app: Any, request: HttpRequest) -> HttpAnswer:
    """The app's answer to one request; the client hangs up after its body, when the answer has begun."""
    path, _, query = request.target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 50000),
        "state": {},
    }
    parts = iter([{"type": "http.request", "body": request.body, "more_body": False}])
    sent: list[dict[str, Any]] = []
    begun = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if part := next(parts, None):
            return part
        await begun.wait()
        return {"type": "http.disconnect"}

    async def keep(message: dict[str, Any]) -> None:
        sent.append(message)
        begun.set()

    error = ""
    try:
        await app(scope, receive, keep)
    except Exception as problem:  # noqa: BLE001 (the app must raise nothing)
        error = f"{type(problem).__name__}: {problem}"
    if not sent:
        return HttpAnswer(500, {}, b"", error)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    body = b"".join(part.get("body", b"") for part in sent[1:])
    if headers.get("content-encoding") == "gzip" and body:
        body = gzip.decompress(body)
    return HttpAnswer(sent[0]["status"], headers, body, error)


def send_all(app: Any, requests: Iterable[HttpRequest]) -> list[tuple[HttpRequest, HttpAnswer]]:
    async def one_after_the_other() -> list[tuple[HttpRequest, HttpAnswer]]:
        return [(request, await send(app, request)) for request in requests]

    return asyncio.run(one_after_the_other())


def faults(answers: Iterable[tuple[HttpRequest, HttpAnswer]]) -> list[str]:
    """Answers of status 500 and more, answers of the API that are not JSON, and exceptions."""
    found = []
    for request, answer in answers:
        problem = answer.error or (f"status {answer.status}" if answer.status >= 500 else "")
        if "json" in answer.headers.get("content-type", "") and request.method != "HEAD" and not problem:
            problem = "" if isinstance(json.loads(answer.body), dict | list) else "not an object or a list"
        if problem:
            found.append(f"{request.method} {request.target[:200]!r} {request.headers[1:]!r:.300}: {problem}")
    return found


# ruff: noqa: E501 (the lists)
NUMBERS = (
    "0", "5", "79", "-1", "00000000000000000000007", "9223372036854775807", "9223372036854775808",
    "999999999999999999", "1000000000000000000", "1" + "0" * 30, "9" * 5000, "1e3", "1e400", "0x10", "1_000", "5.0", "nan",
    "inf", "-inf", "-0", "+5", " 5", "٣", "5%00", "5%0d%0a", "", "%", "5;6", "5,6", "true", "null", "[]", "\u00e9",
)  # fmt: skip
TEXTS = (
    "", "x", "a" * 20_000, "%00", "%ff%fe", "%ed%a0%80", "%F0%9F%98%80", "%u0041", "%", "%zz", "..", "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd", "%2e%2e%2fserver.py", "%5c..%5c", "C:%5Cruns", "//evil.example", "/etc/passwd", "~", "~..",
    EXAMPLE, "%7Etiny-arithmetic", "%3Cscript%3Ealert(1)%3C/script%3E", "';DROP TABLE runs;--", "%25", "{{7*7}}",
    "%E2%80%AE", "*", "?", "LIKE%25_", "reward_mean", "kl", "mean", "none", "k3_ratio", "reward", "clip", "grpo",
)  # fmt: skip
FAIR = (
    "0",
    "1",
    "0.5",
    "2",
    "0.2",
    "64",
    "200",
    "1e-3",
    "1,0,1,0",
    "0,0",
    "0.1,0.2,0.7",
    "grpo,ppo",
    "mean",
    "k3",
    "7B",
)
"""Values that a parameter may have, at the ends of its range and in between."""
METHODS = ("HEAD", "OPTIONS", "POST", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "X" * 300)
HEADERS = (
    (b"origin", b"http://["), (b"origin", b"null"), (b"origin", b""), (b"origin", b"http://\xff"), (b"origin", ORIGIN),
    (b"origin", b"http://[::1"), (b"origin", b"//"), (b"origin", b"http://127.0.0.1:99999999999"),
    (b"cookie", b"="), (b"cookie", b"grpo_lab"), (b"cookie", b"(x)=1; a,b=2"), (b"cookie", b'grpo_lab="\\777"'),
    (b"cookie", b"grpo_lab=\xff\xfe"), (b"cookie", b";;;;" * 2000), (b"cookie", b"$Version=1; path=/; expires=never"),
    (b"range", b"bytes=0-"), (b"range", b"bytes=-1"), (b"range", b"bytes=5-2"), (b"range", b"bytes=,"), (b"range", b"x"),
    (b"range", b"bytes=0-0,2-3,1-9"), (b"range", b"bytes=" + b"0-1," * 500), (b"range", b"bytes=" + b"9" * 5000 + b"-"),
    (b"range", b"bytes=--1"), (b"range", "bytes=٣-٤".encode()), (b"if-range", b"\xff"), (b"if-range", b'"'),
    (b"if-modified-since", b"yesterday"), (b"if-modified-since", b"Thu, 99 Foo 99999 99:99:99 GMT"),
    (b"if-modified-since", b"Mon, 01 Jan 0000 00:00:00 GMT"), (b"if-modified-since", b"Mon, 1 Jan 999999999999 0:0:0"),
    (b"if-none-match", b"*"), (b"if-none-match", b'W/"' + b"a" * 9000), (b"if-none-match", b"\x00"),
    (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-site", b"\xff"),
    (b"accept-encoding", b"gzip;q=nan"), (b"content-type", b"multipart/form-data"), (b"content-length", b"-1"),
    (b"transfer-encoding", b"chunked"), (b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"x-page-token", b"\xff"),
    (b"expect", b"100-continue"), (b"x-forwarded-for", b"x" * 9000), (b"authorization", b"Basic \xff"), (b"host", b"evil"),
)  # fmt: skip
HOSTS = (
    b"", b"[", b"]", b"[::1", b"[::1]:x", b"127.0.0.1:", b"127.0.0.1:\xb2", b"localhost:8765:1", b"\xff", b"evil.example",
    b"127.0.0.1.", b"LOCALHOST", b"127.1", b"0", b"%31", b"127.0.0.1:8765@evil.example", b"x" * 9000,
)  # fmt: skip
BODIES = (
    b"", b"null", b"[]", b"{", b"{}", b"1e999", b"NaN", b'"\\ud800"', b"\xff", b"[" * 9000, b'{"a":' * 3000, b"9" * 5000,
    b"[" * 9000 + b"]" * 9000, b"[" * 900 + b"]" * 900, b"[" * 450 + b"]" * 450, "{}".encode("utf-16"),
    b'{"arms": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"seeds": ' + b"[" * 450 + b"]" * 450 + b', "arms": []}',
    b'{"arms": {"label": 1}}', b'{"arms": [{}]}', b'{"arms": [null]}', b'{"arms": "abc"}', b'{"\\ud800": 1}',
    b'{"arms": [{"label": "\\ud800", "settings": {"\\udfff": 1}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": 1, "settings": {"lr": NaN}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": [], "settings": {"lr": {"a": []}}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": "", "settings": {"task": ["x"]}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": "", "settings": {"reward": {}}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": "", "settings": {"lr": 1' + b"0" * 400 + b'}}], "seeds": 1, "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": "", "settings": {}}], "seeds": 1' + b"0" * 400 + b', "steps": 1, "metrics": ["kl"]}',
    b'{"arms": [{"label": "", "settings": {}}], "seeds": 1, "steps": 1, "metrics": [{}]}',
    b'{"arms": [{"label": "", "settings": {}}], "seeds": 1, "steps": 1, "metrics": ["\\ud800"]}',
    b" " * 30_000,
)  # fmt: skip
"""None of them is a trial that can start."""


def handwritten(page_token: str = "") -> list[HttpRequest]:
    """About 180 requests: each hostile number, text, header, host and body once, where it is read."""
    run, host = f"/api/runs/{EXAMPLE}", (b"host", HOST)
    targets = [f"{run}/steps/{n}/groups/{n}/tokens/{n}/{n}" for n in NUMBERS]
    targets += [f"{run}/completions?begin={n}&points={n}" for n in NUMBERS]
    targets += [f"/api/runs/{text}" for text in TEXTS] + [f"/static/{text}" for text in TEXTS]
    targets += [f"{run}/steps/5/whatif?beta={n}&weight.correct={n}" for n in NUMBERS[:12]]
    targets += [f"/api/compare?runs={EXAMPLE}&metrics={text}" for text in TEXTS[:12]]
    targets += ["*", "http://evil.example/", "//", "/\\", "", "/api", "/static", "/learn/x", "/runs/%00/groups"]
    made = [HttpRequest(_ascii(target)) for target in targets]
    made += [HttpRequest(b"/", method) for method in METHODS]
    made += [HttpRequest(b"/static/js/app.js", headers=(host, header)) for header in HEADERS]
    made += [HttpRequest(b"/api/runs", headers=((b"host", name),)) for name in HOSTS]
    made += [HttpRequest(b"/", headers=()), HttpRequest(b"/api/runs?" + b"a=1&" * 20_000)]
    ours = (host, (b"origin", ORIGIN), (b"x-page-token", page_token.encode()))
    return made + [HttpRequest(b"/api/trials", "POST", ours, body) for body in BODIES]


def generated(seed: int, count: int, page_token: str = "") -> Iterator[HttpRequest]:
    """Random combinations of the lab's addresses with hostile parameters, headers, methods and bodies."""
    dice = random.Random(seed)
    pools, parameters = _addresses(), _parameters()
    for _ in range(count):
        method = "GET" if dice.random() < 0.8 else dice.choice(METHODS)
        target = dice.choice(dice.choice(pools))
        while "{" in target:
            before, _, rest = target.partition("{")
            name, _, after = rest.partition("}")
            target = before + _part(dice, name) + after
        if dice.random() < 0.8:
            names = dice.choices(parameters, k=dice.randint(1, 30))
            target += "?" + "&".join(
                f"{name}={dice.choice(dice.choice((NUMBERS, TEXTS, *[FAIR] * 8)))}" for name in names
            )
        headers = [(b"host", dice.choice(HOSTS) if dice.random() < 0.05 else HOST)]
        headers += dice.choices(HEADERS, k=dice.randint(1, 3)) if dice.random() < 0.2 else []
        if method == "POST":
            target = dice.choice([target, "/api/trials", "/api/trials", "/api/trials/x/cancel"])
            headers += [(b"origin", ORIGIN), (b"x-page-token", page_token.encode())]
        body = dice.choice(BODIES) if method not in ("GET", "HEAD") else b""
        yield HttpRequest(_ascii(target), method, tuple(headers), body)


def _addresses() -> list[list[str]]:
    """Addresses by kind; each kind is as likely as any other."""
    runs = [f"/api/runs/{run}{path}" for path in ABOUT_A_RUN for run in (EXAMPLE, EXAMPLE, "{text}")]
    chapters = [f"/api/chapters/{slug}/{key}" for slug in CHAPTERS for key in chapter(slug).ANSWERS]
    sources = [f"/api/chapters/{slug}/source/{key}" for slug in CHAPTERS for key in chapter(slug).SOURCES]
    compared = [f"/api/compare?runs={EXAMPLE},{{text}}&metrics={{text}}", "/api/compare"]
    others = ["/api/runs", "/api/metrics", "/api/trials", "/api/trials/named/{text}", "/api/chapters/{text}/{text}"]
    events = [f"/api/runs/{EXAMPLE}/events", "/api/runs/{text}/events", "/api/trials/{text}/events"]
    pages = [
        "/",
        "/{text}",
        "/runs/{text}",
        "/learn/{text}",
        "/static/{text}",
        "/static/js/app.js",
        "/static/js/{text}",
    ]
    return [runs, runs, runs, chapters, [*sources, *compared, *compared], [*others, *events], pages, pages]


def _parameters() -> list[str]:
    """Every parameter that the lab reads."""
    source = "".join(file.read_text() for file in Path(grpo.lab.__file__).parent.rglob("*.py"))
    read = re.findall(r"(?:query|request|wanted)[^()\n]{0,20}[(,] ?\"([a-z_]+)\"", source)
    return sorted({*read, *whatif.CHOICES, *whatif.NUMBERS, "token", "weight.correct", "weight.", ""})


def _part(dice: random.Random, name: str) -> str:
    if ":" in name:
        return dice.choice(NUMBERS) if dice.random() < 0.5 else str(dice.randint(0, 9))
    return dice.choice(TEXTS)


def _ascii(target: str) -> bytes:
    """The bytes of a request line; other characters are percent-encoded, as HTTP demands."""
    return quote(target, safe="/?&=%:;,~*+.-_'(){}[]<>@!$#\\|^`").encode()
