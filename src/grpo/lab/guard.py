"""Checks of requests, and the content security policy of pages.

A page of any website can make a browser send requests to this machine. So every request must name the lab's address
(a foreign name that resolves to this machine is refused), must not come from another site, and, beyond this machine,
must have a token. Only trials can be started and cancelled by a request, which must have the token of a lab page.
Completions are untrusted: the policy below allows only the lab's own scripts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import deque
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "[::1]"])
COOKIE = "grpo_lab"
PAGE_TOKEN = "x-page-token"
WRITES = re.compile(r"/api/trials(/[A-Za-z0-9_-]{1,40}/cancel)?")
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
        return any(hmac.compare_digest(offered.encode(), token.encode()) for token in list(self.issued))


class Guard:
    """Refuses requests of other sites and names, and sends the policy with every answer."""

    def __init__(self, app: ASGIApp, *, address: str, token: str, policy: str, pages: PageTokens):
        self.app, self.token, self.policy, self.pages = app, token, policy, pages
        self.everywhere = address in ("0.0.0.0", "::")
        self.names = LOOPBACK_NAMES | {f"[{address}]" if ":" in address else address}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        if refusal := self._refusal(scope, headers):
            return await PlainTextResponse(refusal, 403)(scope, receive, send)
        if self.token and not self._knows_token(headers):
            [offered, *_] = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
            if not hmac.compare_digest(offered.encode(), self.token.encode()):
                return await PlainTextResponse("token missing or wrong; open the address that grpo lab printed", 401)(
                    scope, receive, send
                )
            # The token moves from the address into a cookie, so that links do not contain it.
            welcome = RedirectResponse(scope["path"], 303)
            welcome.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return await welcome(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["Content-Security-Policy"] = self.policy
                answer["X-Content-Type-Options"] = "nosniff"
                answer["Referrer-Policy"] = "no-referrer"
                answer["Cross-Origin-Resource-Policy"] = "same-origin"
                answer["Cross-Origin-Opener-Policy"] = "same-origin"
            await send(message)

        await self.app(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_ours(re.sub(r":\d+$", "", host)):
            return f"grpo lab does not answer to the name {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "grpo lab answers only its own pages"
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "grpo lab answers only its own pages"
        if scope["method"] in ("GET", "HEAD"):
            return ""
        if scope["method"] != "POST" or not WRITES.fullmatch(scope["path"]):
            return "grpo lab answers GET and HEAD; POST only starts and cancels trials"
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

    def _knows_token(self, headers: Headers) -> bool:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.token.encode())
