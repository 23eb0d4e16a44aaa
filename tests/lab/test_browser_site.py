"""The static site from a web host and as a file, exports of runs, and the size of the first page."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.core import token_loss
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.site.export import export
from grpo.lab.tokens import Traced
from grpo.record.store import Run
from helpers.records import make_run
from helpers.visit import AXE, HOSTILE, TOKEN, Lab, Visit, faults

pytestmark = pytest.mark.browser

RUN = "#/runs/~tiny-arithmetic"
VIEWS = (
    "overview",
    "groups",
    "signal",
    "difficulty",
    "completions",
    "whatif",
    "replay",
    "prompts",
    "time",
    "findings",
    "tokens",
)
PAGES = ("", "#/scene", "#/play", "#/story", "#/learn", "#/runs", "#/compare?runs=~tiny-arithmetic", "#/metrics")
NOWHERE = {
    "#/runs/%zz": "Page not found",
    "#/runs/nosuch": "This site has no run nosuch.",
    "#/compare?runs=~tiny-arithmetic,nosuch": "This site has no run nosuch.",
}
THERE_AND_BACK = """async (places) => {
  for (const place of places) {
    location.hash = place;
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done));
  }
  for (let i = 0; i < 20; i++) await new Promise(requestAnimationFrame);
}"""
MOST_AT_FIRST = 400_000
"""Bytes of the landing page, compressed."""


class StaticVisit(Visit):
    """A page without the lab's server; requests of other places are noted, and fail where the network is off."""

    def __init__(self, page: Any, base: str):
        super().__init__(page, Lab(Path(), 0))
        self.base = base

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.base.rpartition("/")[0], "data:", "blob:")):
            self.elsewhere.append(request.url)

    def violations(self) -> list[str]:
        """Without a second request for the style sheets, which a file may not make."""
        return self._violations("{ preload: false }")

    def go(self, path: str) -> None:
        self.page.goto("about:blank")  # another hash alone would not load the page again
        self.page.goto(self.base + path)
        self.settle()


def opened(chromium: Any, base: str, *, offline: bool) -> Iterator[StaticVisit]:
    context = chromium.browser.new_context(offline=offline)
    context.set_default_timeout(60_000)
    context.add_init_script(path=AXE)
    yield StaticVisit(context.new_page(), base)
    context.close()


def worked_share(step: int, token: int) -> tuple[str, float]:
    """The address of a recorded token of the shipped run, and its share of the loss."""
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        row = run.token_arrays(step)[0]
        traced = Traced(row, run.config["loss"])
    place = f"step={step}&group={row['group_index']}&sample={row['sample_index']}&token={token}"
    return f"{RUN}/tokens?{place}", token_loss(token, **traced.inputs)


def test_the_site_as_a_file_without_a_network(chromium: Any, site: Path) -> None:
    for visit in opened(chromium, f"{site.as_uri()}/index.html", offline=True):
        for path in (*PAGES, *(f"{RUN}/{view}" for view in VIEWS)):
            visit.go(path)
            wrong = visit.page.locator(".failed, .katex-error").all_inner_texts() + visit.complaints + visit.elsewhere
            assert wrong == [], path
        address, share = worked_share(5, 1)
        visit.go(address)
        assert visit.number("share") == pytest.approx(share, rel=1e-4)
        for path in ("#/story", f"{RUN}/groups", "#/compare?runs=~tiny-arithmetic"):
            visit.go(path)
            assert faults(visit) == [], path
        for path, said in NOWHERE.items():
            visit.go(path)
            visit.page.get_by_text(said, exact=True).wait_for()
        # The answer for step 61 comes after step 4 is asked for again.
        visit.go(f"{RUN}/groups?step=4")
        prompts = visit.page.locator(".group-prompt").all_inner_texts()
        visit.page.evaluate(THERE_AND_BACK, [f"{RUN}/groups?step={step}" for step in (61, 4)])
        visit.settle()
        assert visit.page.locator(".group-prompt").all_inner_texts() == prompts
        visit.go(f"{RUN}/whatif?step=7&scale=none")
        assert visit.page.get_by_role("button", name="dr_grpo").is_disabled()
        assert visit.page.get_by_role("radio", name="group std").is_disabled()
        visit.page.locator("[data-recorded] a").first.click()
        visit.page.wait_for_url("**step=0")
        for name in ("nothing", "mean of the others"):
            visit.page.get_by_role("radio", name=name, exact=True).check()
        visit.page.wait_for_url("**whatif?step=0&baseline=leave_one_out")
        assert faults(visit) == []
        assert visit.page.locator(".failed, input[type=range]:enabled").count() == 1  # the step's
        # nano trains in a worker made of a Blob.
        visit.go("#/learn/train?at=here")
        here = visit.page.locator(".train-here")
        here.get_by_role("button").first.click()
        visit.page.locator(".train-here:not([data-steps='0'])").wait_for()
        assert visit.complaints == []


def test_the_site_in_a_folder_of_a_web_host(chromium: Any, site: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site.parent))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/{site.name}/"
        for visit in opened(chromium, base, offline=False):
            visit.go("")
            page = visit.page
            page.get_by_role("link", name="Learn", exact=True).click()
            page.wait_for_url("**/#/learn")
            page.locator(".chapters a").nth(3).click()
            page.wait_for_url("**/#/learn/loss")
            visit.settle()
            page.get_by_role("radio", name="Math").check()
            page.wait_for_url("**/#/learn/loss?depth=math")
            page.locator(".terms a", has_text="the clip").first.click()
            page.wait_for_url("**/#/learn/loss?depth=math&at=clip")
            assert page.evaluate("document.activeElement.id") == "clip"
            page.reload()
            visit.settle()
            page.go_back()
            page.go_back()
            page.wait_for_url("**/#/learn")
            assert visit.complaints + visit.elsewhere == []
        server.shutdown()


def test_an_export_of_the_shipped_run(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    assert export(tmp_path, "~tiny-arithmetic", file, 5_000_000, lambda line: None).endswith(" MB, all steps")
    assert file.stat().st_size <= 5_000_000
    for visit in opened(chromium, file.as_uri(), offline=True):
        for view in VIEWS:
            visit.go(f"{RUN}/{view}")
            assert visit.page.locator(".failed, .katex-error").count() == 0, view
        address, share = worked_share(5, 1)
        visit.go(address)
        assert visit.number("share") == pytest.approx(share, rel=1e-4)
        visit.go(f"{RUN}/groups")
        assert faults(visit) == []
        assert "Run tiny-arithmetic, exported" in visit.page.locator("header.top").inner_text()


def test_an_export_of_a_hostile_run_with_steps_left_out(chromium: Any, tmp_path: Path) -> None:
    text = f"{HOSTILE}</script><script>window.hacked = 1</script><!-- \u2028]]>{'y' * 700}"
    make_run(tmp_path, "hostile", steps=12, texts=lambda *place: text)
    file = tmp_path / "run.html"
    export(tmp_path, "hostile", file, 5_000_000, lambda line: None)
    whole = file.stat().st_size
    said = export(tmp_path, "hostile", file, whole - 8_000, lambda line: None)
    assert " of 12 steps" in said
    assert file.stat().st_size <= whole - 8_000
    for visit in opened(chromium, file.as_uri(), offline=True):
        visit.go("")
        assert "steps of the run; charts of the whole run have all" in visit.page.locator("header.top").inner_text()
        for view in VIEWS:
            visit.go(f"#/runs/hostile/{view}")
            assert visit.page.evaluate("window.hacked") is None
            assert visit.page.locator("main script, main img").count() == 0
        visit.go("#/runs/hostile/groups")
        shown = visit.page.locator("main .untrusted:visible", has_text="<script>").first.inner_text()
        assert "</script><script>window.hacked = 1</script><!-- U+2028]]>" in shown
        cut = "only the first 600 characters of a completion are searched."
        visit.go("#/runs/hostile/completions?regex=1&text=y{300}")
        assert cut in visit.page.locator("[data-cut]").inner_text()
        assert visit.page.locator(".virtual .hit").count() > 5
        assert visit.complaints + visit.elsewhere == []


def test_the_first_page_is_small(chromium: Any, classroom: Lab) -> None:
    """Bytes that a browser without a cache receives at /, until the first round is shown. nano's weights come later."""
    context = chromium.browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.goto(f"{classroom.origin}/api/runs?token={TOKEN}")
    page.set_extra_http_headers({"Authorization": f"Bearer {TOKEN}"})
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    received: list[float] = []
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(classroom.origin)))
    page.goto(f"{classroom.origin}/")
    page.locator(".now-update[aria-busy=false] [data-number=probability-8-after]").wait_for()
    page.wait_for_load_state("networkidle")
    assert 100_000 < sum(received) <= MOST_AT_FIRST
    assert "/api/scene" in asked
    assert "/api/nano" not in asked
    with page.expect_response("**/api/nano"):
        page.keyboard.press("ArrowRight")
    page.locator(".now-sample .scene-answer").first.wait_for()

    # A playing scene loads them in the last phase of the first round.
    asked.clear()
    page.emulate_media(reduced_motion="no-preference")
    page.clock.install()
    page.goto(f"{classroom.origin}/")
    phase = page.locator(".scene-phases [aria-current]")
    while phase.inner_text() != "Update":
        assert "/api/nano" not in asked
        page.clock.run_for(200)
    while "/api/nano" not in asked and page.locator("[data-number=round]").inner_text() == "1":
        page.clock.run_for(200)
    assert "/api/nano" in asked
    context.close()
