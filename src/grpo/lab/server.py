"""`grpo lab`: the web server."""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from grpo.errors import GrpoError
from grpo.lab import chapters
from grpo.lab.answer import Answer
from grpo.lab.api import routes, unreadable
from grpo.lab.catalogue import Catalogue
from grpo.lab.connection import listen, web_server
from grpo.lab.guard import Guard, PageTokens, content_policy, is_loopback
from grpo.lab.recompute.jobs import Jobs
from grpo.lab.recompute.routes import routes as recompute_routes
from grpo.lab.trials.routes import routes as trial_routes
from grpo.lab.trials.runner import Runner
from grpo.record.reader import refuse_file

STATIC = Path(__file__).with_name("static")
NO_TOKEN = "none"
PAGES = (
    "/",
    "/scene",
    "/play",
    "/story",
    "/runs",
    "/runs/{run}",
    "/runs/{run}/{view}",
    "/compare",
    "/metrics",
    "/learn",
    "/learn/{chapter}",
)
"""Paths that serve the single page; its router shows the view."""


def make_app(runs: Path, *, address: str = "127.0.0.1", token: str = "") -> Guard:
    page = (STATIC / "index.html").read_text()
    tokens, runner, jobs, catalogue = PageTokens(), Runner(), Jobs(), Catalogue(runs)

    def shown(status: int = 200) -> Response:
        """The page with a new token, with which it may start and cancel trials."""
        return HTMLResponse(page.replace("PAGE_TOKEN", tokens.issue()), status, headers={"Cache-Control": "no-store"})

    def show(request: Request) -> Response:
        return shown()

    def nothing_here(request: Request, problem: Exception) -> Response:
        if request.url.path.startswith("/api/"):
            return Answer({"error": "no such address"}, 404)
        return shown(404)

    app = Starlette(
        routes=[
            *recompute_routes(catalogue, jobs),
            *routes(catalogue, jobs),
            *chapters.routes(),
            *trial_routes(runner),
            *(Route(path, show) for path in PAGES),
            Mount("/static", CheckedFiles(directory=STATIC)),
        ],
        middleware=[Middleware(GZipMiddleware, compresslevel=6)],
        exception_handlers={404: nothing_here, sqlite3.Error: unreadable},
        lifespan=closing(runner, jobs),
    )
    return Guard(app, address=address, token=token, policy=content_policy(page), pages=tokens)


class CheckedFiles(StaticFiles):
    """Files that a browser keeps and checks by their ETag at each load: after an upgrade none is out of date."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def closing(runner: Runner, jobs: Jobs) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Lets a worker wait for trials while the server runs; ends it, the running trial and recomputation afterwards."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        runner.open()
        yield
        runner.close()
        jobs.close()

    return lifespan


def serve(runs: Path, *, address: str, port: int, token: str, open_browser: bool) -> None:
    """Serves until interrupted. An empty token: a random one; "none": no token, only for this machine's own address."""
    token = "" if token == NO_TOKEN else token or secrets.token_urlsafe(24)
    refuse_file(runs)
    if not is_loopback(address) and not token:
        raise GrpoError(f"field host: other machines could read your runs at {address}; leave out --token {NO_TOKEN}")
    listener = listen(address, port)
    port = listener.getsockname()[1]
    shown = "127.0.0.1" if address in ("0.0.0.0", "::") else f"[{address}]" if ":" in address else address
    place = f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")
    print(f"grpo lab: {place}   (runs in {runs}; stop with Ctrl-C)", flush=True)
    # Imports torch in the background, so that the first request does not wait for it.
    threading.Thread(target=_prepare, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as private:
        if open_browser:
            threading.Timer(0.5, show_in_browser, [place, Path(private)]).start()
        web_server(make_app(runs, address=address, token=token)).run([listener])


def show_in_browser(place: str, private: Path) -> None:
    """Opens the address through a file that only this user can read: every user can read a browser's arguments."""
    page = private / "open.html"
    page.write_text(f'<!doctype html><title>grpo lab</title><meta http-equiv="refresh" content="0; url={place}">')
    webbrowser.open(page.as_uri())


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)  # a trainer may need the cores
    for slug in chapters.CHAPTERS:
        chapters.chapter(slug)
