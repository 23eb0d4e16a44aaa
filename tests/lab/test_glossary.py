"""The glossary: every term that a page names has an explanation, which hover, focus and tap show."""

from __future__ import annotations

import re
from typing import Any

import pytest

from grpo.lab.server import STATIC
from helpers.visit import Lab, Visit, open_page


def test_every_term_on_a_page_has_one_or_two_sentences() -> None:
    entries = re.findall(
        r'^  "?([\w-]+)"?: \{ title: "[^"]+", text: "([^"]+)" \},$', (STATIC / "js/glossary.js").read_text(), re.M
    )
    assert len(entries) == len({name for name, _ in entries}) >= 29
    for name, text in entries:
        assert text.endswith("."), name
        assert len(re.findall(r"\. |\.$", text)) <= 2, name
        assert len(text.split()) <= 30, name
    pages = "".join(file.read_text() for file in sorted((STATIC / "js").rglob("*.js")))
    assert set(re.findall(r'<\$\{Term\} of="([^"]+)"', pages)) <= {name for name, _ in entries}


@pytest.mark.browser
def test_hover_focus_and_tap_show_a_term(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/credit")
    page, tip = visit.page, visit.page.get_by_role("tooltip")
    word = page.locator(".term").first
    word.hover()
    tip.wait_for()
    tip.hover()  # the explanation stays while the mouse is on it
    assert "A piece of text" in tip.inner_text()
    page.mouse.move(2, 2)
    tip.wait_for(state="detached")
    word.focus()
    tip.wait_for()
    assert word.get_attribute("aria-describedby") == tip.get_attribute("id")
    assert visit.violations() == []
    page.keyboard.press("Escape")
    tip.wait_for(state="detached")
    page.close()
    touch = chromium.browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    visit = Visit(touch.new_page(), classroom)
    visit.go("/learn/notation")
    for word in visit.page.locator(".words-list .term").all():
        word.tap()
        tip = visit.page.get_by_role("tooltip")
        tip.wait_for()
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        visit.page.touchscreen.tap(2, 2)
        tip.wait_for(state="detached")
    assert visit.complaints == []
    touch.close()
