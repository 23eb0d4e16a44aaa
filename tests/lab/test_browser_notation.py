"""The way in and the notation page in a browser."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_the_newcomers_path(chromium: Any, classroom: Lab) -> None:
    """Every link of the path leads to a page that shows what it says."""
    visit = open_page(chromium, classroom, "/learn")
    page = visit.page
    story = answer("notation", "story", {})
    assert visit.number("story-before") == pytest.approx(story["accuracy"][0], abs=0.005)
    assert visit.number("story-after") == pytest.approx(story["accuracy"][1], abs=0.005)
    assert page.locator(".chapters a").count() == 9
    assert faults(visit) == []
    for link in (
        "Overview of the recorded run",
        "This group",
        "Push on the tokens of the first step",
        "The same problems",
    ):
        page.get_by_role("link", name=link).first.click()
        page.wait_for_url("**/runs/**")
        visit.settle()
        assert page.locator(".failed").count() == 0, link
        page.go_back()
        visit.settle()
    assert visit.complaints == []
    # A run of the reader that got worse: said so, with a link, and not followed by praise.
    mine = {"id": "1", "name": "bad-lr", "kind": "grpo", "task": "arithmetic", "steps": 40, "accuracy": [0.36, 0.0]}
    page.route("**/api/runs", lambda asked: asked.fulfill(json={"runs": [mine], "folder": ""}))
    visit.go("/learn")
    first, second = (page.locator(".path > li").nth(place).inner_text() for place in (0, 1))
    assert "bad-lr, 36% → 0% of held-out problems right. It did not improve: possible problems." in first
    assert second.startswith("See a run that worked\n\nThis one ships with the lab")
    page.close()


def test_notation(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/notation?depth=math")
    visit.page.locator("input[name=t]").press("Home")
    visit.page.wait_for_url("**t=0.1")
    visit.settle()
    found = answer("notation", "softmax", {"t": "0.1"})["probabilities"]
    visit.await_number("p-0", "100.0%")
    assert visit.number("p-1") == pytest.approx(found[1], abs=5e-4)
    assert "What the chapters assume." in visit.page.locator(".lesson-section").first.inner_text(), "it counts nothing"
    assert faults(visit) == []
    visit.page.close()
