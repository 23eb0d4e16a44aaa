"""Intuition is short: the words of each chapter at that depth, and the words it does not use."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.visit import Lab, open_page

pytestmark = pytest.mark.browser

MOST = 550
SHORT = ["why", "group", "advantage", "loss", "credit", "costs", "train", "turns", "notation"]
"""Chapters whose Intuition is held to the limit."""
JARGON = r"σ|\bstd\b|cosine|kurtosis|\bk[123]\b"


@pytest.mark.parametrize("slug", SHORT)
def test_intuition_is_short_and_plain(chromium: Any, classroom: Lab, slug: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/{slug}")
    words = visit.words(".lesson-section")
    assert len(words) <= MOST
    assert re.findall(JARGON, " ".join(words)) == []
    assert visit.page.get_by_role("heading", name="You are done here").count() == 1
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.innerText") == "Skip to content"
    visit.page.close()
