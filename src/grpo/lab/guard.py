"""Checks of requests, and the content security policy of pages.

A page of any website can make a browser send requests to this machine, and every user of this machine can connect to
it. So every request must name the lab's address (a foreign name that resolves to this machine is refused), must not
come from another site, and must have the lab's token: in the address of the first visit, later in a cookie; programs
may send it in the address of an API path or in a header. Trials and recomputations can be started and cancelled and
notes of a run saved by a request that also has the token of a lab page. Completions are untrusted: the policy below
allows only the lab's own scripts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import deque
from html import escape
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo.lab.answer import Answer

LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "[::1]"])
COOKIE = "grpo_lab"
PAGE_TOKEN = "x-page-token"
WRITES = re.compile(
    r"/api/trials(/[A-Za-z0-9_-]{1,40}/cancel)?|/api/runs/[^/]{1,200}/notes|"
    r"/api/runs/[^/]{1,200}/steps/[0-9]{1,18}/groups/[0-9]{1,18}/recompute(/cancel)?"
)
"""The only paths that accept POST."""
PLOT_STYLE = "sha256-jSYQUrW7J0b3jPqhZP9C2Xh1PyJKHKXd4s0fpGGKrww="
"""Hash of the one style sheet that Observable Plot puts into its charts."""


def is_loopback(address: str) -> bool:
    """
    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def content_policy(page: str) -> str:
    """Allows the page's own inline scripts, by their hashes; no other inline script or style, and no other host."""
    scripts = re.findall(r"<script(?: type=\"importmap\")?>(.*?)</script>", page, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' {' '.join(hashes)}".strip(),
            f"style-src 'self' '{PLOT_STYLE}'",
            "font-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


class PageTokens:
    """Tokens of page loads; the latest are kept. A page of another site cannot read them."""

    def __init__(self, most: int = 256):
        self.issued: deque[str] = deque(maxlen=most)

    def issue(self) -> str:
        self.issued.append(secrets.token_urlsafe(24))
        return self.issued[-1]

    def knows(self, offered: str) -> bool:
        return any(_same(offered, token) for token in list(self.issued))


class Guard:
    """Refuses requests of other sites, names and users, and sends the policy with every answer."""

    def __init__(self, app: ASGIApp, *, address: str, token: str, policy: str, pages: PageTokens):
        self.app, self.token, self.policy, self.pages = app, token, policy, pages
        self.session = hashlib.sha256(token.encode()).hexdigest()
        """Value of the cookie: its characters need no quoting."""
        self.everywhere = address in ("0.0.0.0", "::")
        self.names = LOOPBACK_NAMES | {f"[{address}]" if ":" in address else address}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # the lab has no WebSockets
            return await send({"type": "websocket.close", "code": 1008})

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["Content-Security-Policy"] = self.policy
                answer["X-Content-Type-Options"] = "nosniff"
                answer["Referrer-Policy"] = "no-referrer"
                answer["Cross-Origin-Resource-Policy"] = "same-origin"
                answer["Cross-Origin-Opener-Policy"] = "same-origin"
            await send(message)

        await (self._own_answer(scope) or self.app)(scope, receive, guarded)

    def _own_answer(self, scope: Scope) -> Response | None:
        """A refusal, or the answer to a token in the address of a page; None for the app's requests."""
        headers = Headers(scope=scope)
        if refusal := self._refusal(scope, headers):
            return _refused(scope, refusal, 403)
        if not self.token:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        # Pages have a parameter of this name too: the number of a token.
        others = [(name, value) for name, value in query if name != "token" or not _same(value, self.token)]
        if len(others) < len(query):
            if scope["path"].startswith("/api/"):  # a program asks, and wants the answer itself
                scope["query_string"] = urlencode(others).encode()
                return None
            return self._welcome(scope["path"], others, headers)
        if _same(_bearer(headers), self.token):
            return None
        if _same(cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers), ""), self.session):
            return None
        return _refused(scope, "token missing or wrong; open the address that grpo lab printed", 401)

    def _welcome(self, path: str, query: list[tuple[str, str]], headers: Headers) -> Response:
        """Moves the token from the address into a cookie, so that links do not contain it.

        A page that loads the address without the token, because browsers do not send a strict cookie after a redirect
        that another site's link began.
        """
        address = "/" + quote(path.lstrip("/\\")) + (f"?{urlencode(query)}" if query else "")
        target = escape(address)
        page = HTMLResponse(
            '<!doctype html><title>grpo lab</title><link rel="icon" href="/static/icon.svg">'
            f'<meta http-equiv="refresh" content="0; url={target}">'
            f'<a href="{target}">grpo lab</a>',
            headers={"Cache-Control": "no-store"},
        )
        page.set_cookie(_cookie_name(headers), self.session, httponly=True, samesite="strict")
        return page

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_ours(re.sub(r":\d+$", "", host)):
            return f"grpo lab does not answer to the name {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "grpo lab answers only its own pages"
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "grpo lab answers only its own pages"
        if scope["method"] in ("GET", "HEAD"):
            return ""
        if scope["method"] != "POST" or not WRITES.fullmatch(scope["path"]):
            return "grpo lab answers GET and HEAD; POST only starts and cancels computations and saves notes"
        if origin is None or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "grpo lab answers only its own pages"
        known = self.pages.knows(headers.get(PAGE_TOKEN, ""))
        return "" if known else "this page was loaded before the lab was started; reload it"

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:  # bound to every address: any IP address is ours, but a name, which anyone can point here, is not
            return self.everywhere and bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False


def _refused(scope: Scope, why: str, status: int) -> Response:
    return Answer({"error": why}, status) if scope["path"].startswith("/api/") else PlainTextResponse(why, status)


def _bearer(headers: Headers) -> str:
    """The token of `Authorization: Bearer TOKEN`; header values are read as Latin-1, and sent as UTF-8."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1").decode(errors="replace") if scheme.lower() == "bearer" else ""


def _cookie_name(headers: Headers) -> str:
    """One per port: a browser sends the cookies of a host to all its ports, and each may have a lab."""
    port = re.search(r":([0-9]{1,5})$", headers.get("host", ""))
    return f"{COOKIE}_{port[1] if port else 80}"


def _same(offered: str, secret: str) -> bool:
    return hmac.compare_digest(offered.encode(), secret.encode())
