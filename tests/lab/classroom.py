"""What the chapters' browser tests share: one browser, one lab without runs, and a look at a chapter from all sides.

from classroom import chromium, classroom, faults  # noqa: F401
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from visit import Lab, Visit

from grpo.lab.server import _listen, make_app

CHROMIUM = os.environ.get("GRPO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(__file__).parent / "vendor/axe-core/axe.min.js"
SIDES = [("light", 1280, 900), ("dark", 1280, 900), ("dark", 390, 844), ("light", 390, 844)]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install the package chromium, or name one in GRPO_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from serving(tmp_path_factory.mktemp("runs"))


def serving(runs: Path) -> Iterator[Lab]:
    listener = _listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(runs), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield Lab(runs, listener.getsockname()[1])
    server.should_exit = True
    thread.join()


def open_page(chromium: Any, lab: Lab, path: str) -> Visit:
    """A page, loaded and settled, on a light desktop; to be closed with `visit.page.context.close()`."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(60_000)
    context.add_init_script(path=AXE)
    visit = Visit(context.new_page(), lab)
    visit.go(path)
    return visit


def faults(visit: Visit) -> list[str]:
    """All that is wrong with the page as it stands, light and dark, wide and narrow."""
    found = []
    for theme, width, height in SIDES:
        visit.page.emulate_media(color_scheme=theme)
        visit.page.set_viewport_size({"width": width, "height": height})
        visit.settle()
        found += [f"{theme} {width}: {violation}" for violation in visit.violations()]
        overflow = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if overflow > 0:
            found.append(f"{theme} {width}: the page is {overflow} pixels wider than the screen")
    visit.page.emulate_media(color_scheme="light")
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.settle()
    broken = visit.page.locator(".failed, .katex-error").all_inner_texts()
    return found + broken + visit.complaints + visit.elsewhere
