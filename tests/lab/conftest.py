"""A lab on a port of its own, with runs made to order; and a browser that notices everything."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from records import make_run

from grpo.lab.server import _listen, make_app

CHROMIUM = os.environ.get("GRPO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(__file__).parent / "vendor/axe-core/axe.min.js"
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\x1b[31mred\u202egnp.exe\u200f"


class Lab:
    def __init__(self, runs: Path, port: int):
        self.runs, self.port, self.origin = runs, port, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runs = tmp_path_factory.mktemp("runs")
    make_run(runs, "hostile", texts=lambda *place: HOSTILE)
    make_run(runs, "seed-1", seed=1, lr=1e-4)
    make_run(runs, "seed-2", seed=2, lr=1e-4, metrics=lambda step: {"reward_mean": 0.5 + step / 100})
    make_run(runs, "diverged", metrics=lambda step: {"kl": step / 10})
    (runs / "broken").mkdir()
    (runs / "broken/run.db").write_bytes(b"no database")
    listener = _listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(runs), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield Lab(runs, listener.getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install the package chromium, or name one in GRPO_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page, and all that it complained of or asked for."""

    def __init__(self, page: Any, lab: Lab):
        self.page, self.lab = page, lab
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._requested)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.lab.origin, "data:")):
            self.elsewhere.append(request.url)

    def go(self, path: str) -> None:
        self.page.goto(self.lab.origin + path)
        self.settle()

    def settle(self) -> None:
        """Until nothing loads any more, and every chart is drawn."""
        self.page.locator("h1").first.wait_for()
        waiting = ".loading, [aria-busy=true], .chart-frame:not(:has(svg))"
        self.page.locator(waiting).first.wait_for(state="detached")

    def violations(self) -> list[str]:
        found = self.page.evaluate("async () => (await axe.run()).violations")
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def number(self, name: str) -> float:
        text = self.page.locator(f"[data-number={name}]").first.inner_text()
        value = float(text.replace("−", "-").replace("+", "").replace(",", "").rstrip("%"))
        return value / 100 if text.endswith("%") else value


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture
def visit(chromium: Any, lab: Lab, theme: str, size: tuple[int, int]) -> Iterator[Visit]:
    context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    context.set_default_timeout(60_000)
    context.add_init_script(path=AXE)
    yield Visit(context.new_page(), lab)
    context.close()
