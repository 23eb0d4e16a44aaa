"""Intuition is short: the words of each chapter at that depth, and the words it does not use."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helpers.visit import Lab, open_page

pytestmark = pytest.mark.browser

MOST = 550
SHORT = ["why"]
"""Chapters whose Intuition is held to the limit."""
JARGON = r"σ|cosine|kurtosis|\bk[123]\b"

WORDS_OF_SECTIONS = """() => [...document.querySelectorAll(".lesson-section")].map((section) => {
  const copy = section.cloneNode(true);
  const other = "svg, .chart button, .chart details, .untrusted, .katex, .visually-hidden, [role=tooltip]";
  copy.querySelectorAll(other).forEach((part) => part.remove());
  const walk = document.createTreeWalker(copy, NodeFilter.SHOW_TEXT), texts = [];
  while (walk.nextNode()) texts.push(walk.currentNode.textContent);
  return texts.join(" ");
}).join(" ")"""
"""All text of the sections, in closed parts too; no charts (but their legends), formulas and completions."""


def words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_][\w’'-]*", text)


@pytest.mark.parametrize("slug", SHORT)
def test_intuition_is_short_and_plain(chromium: Any, classroom: Lab, slug: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/{slug}")
    text = visit.page.evaluate(WORDS_OF_SECTIONS)
    assert len(words(text)) <= MOST
    assert re.findall(JARGON, text) == []
    assert visit.page.get_by_role("heading", name="You are done here").count() == 1
    visit.page.close()
