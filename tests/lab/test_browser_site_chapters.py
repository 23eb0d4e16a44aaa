"""Every chapter of the static site, opened as a file without a network: all depths, every slider moved once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.lab.chapters import CHAPTERS
from helpers.visit import Lab, Visit

pytestmark = pytest.mark.browser

OPENED = "document.querySelectorAll('main details').forEach((each) => { each.open = true; })"


class FilePage(Visit):
    """A page of the site, from the file system."""

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.elsewhere.append(request.url)


@pytest.fixture
def visit(chromium: Any, site: Path) -> Any:
    offline = chromium.browser.new_context(offline=True)
    offline.set_default_timeout(60_000)
    found = FilePage(offline.new_page(), Lab(site, 0))
    yield found
    offline.close()


def failures(visit: Visit) -> list[str]:
    """What the page shows or reports as wrong."""
    return visit.page.locator(".failed, .katex-error").all_inner_texts() + visit.complaints + visit.elsewhere


def test_every_chapter_works_as_a_file(visit: FilePage, site: Path) -> None:
    page, wrong, moved = visit.page, [], set()
    for slug in CHAPTERS:
        for depth in ("intuition", "math", "code"):
            page.goto("about:blank")
            page.goto(f"file://{site}/index.html#/learn/{slug}?depth={depth}")
            visit.settle()
            for options in page.locator(".question-options").all():
                options.locator("button").first.click()
            for claim in page.locator(".misconception > button").all():
                claim.click()
            page.evaluate(OPENED)
            visit.settle()
            for slider in page.locator("main input[type=range]").all():
                name = (slug, slider.get_attribute("name"))
                if name not in moved:
                    slider.press("ArrowLeft" if slider.evaluate("(one) => one.value === one.max") else "ArrowRight")
                    moved.add(name)
            page.wait_for_timeout(100)  # longer than a slider rests before it asks
            visit.settle()
            wrong += [f"{slug} {depth}: {failure}" for failure in failures(visit) + visit.incomplete_charts()]
            visit.complaints.clear()
    assert not wrong
    assert len(moved) > 100

    # The reader's own words are scored; a text that only the checker in Python reads says so in one line.
    page.goto(f"file://{site}/index.html#/learn/why")
    visit.settle()
    page.locator("input[name=own]").first.fill("I think the answer is 14.")
    page.locator(".answers li.own", has_text="I think the answer is 14.").first.wait_for()
    page.locator("input[name=own]").first.fill("fourteen")
    page.locator(".failed", has_text="start `grpo lab` on your machine").first.wait_for()
