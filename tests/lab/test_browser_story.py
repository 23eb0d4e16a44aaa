"""The story in a browser: short, stepped by keys, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpo.core import group_advantages, zero_signal_chance
from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser

MOST_WORDS = 700


def test_the_story_is_short_and_its_numbers_are_the_engines(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/story")
    page = visit.page
    screens = page.get_by_role("list", name="Screens").get_by_role("button").count()
    found = answer("why", "update", {"phase": "4", "prompt": "24+31+18=", "seed": "1", "lr": "0.0003"})
    words = 0
    for screen in range(1, screens + 1):
        if screen > 1:
            page.keyboard.press("ArrowRight")
            page.wait_for_url(f"**s={screen}*")
        visit.settle()
        words += len(visit.words(".story-screen"))
        if screen == 3:
            advantages = [visit.number(f"story-advantage-{place}") for place in range(8)]
            assert advantages == pytest.approx([row["advantage"] for row in found["completions"]], abs=5e-3)
        if screen == 4:
            page.get_by_label("Reward of answer 1", exact=True).press("Home")
            visit.await_number("story-mean", "0.38")
            rewards = [0.0, *(row["reward"] for row in found["completions"][1:])]
            [moved] = group_advantages(torch.tensor([rewards], dtype=torch.float64)).tolist()
            assert visit.number("story-advantage-0") == pytest.approx(moved[0], abs=5e-3)
        if screen == 5:
            assert visit.number("story-silent") == pytest.approx(zero_signal_chance(0.9, 8), abs=5e-3)
            assert faults(visit) == []
        if screen == 6:
            # Advantages of equal size: a third of the tokens, three times the push.
            pushes = [visit.number(f"story-push-{place}") for place in range(8)]
            assert pushes == pytest.approx([1000 * row["push"][0] for row in found["completions"]], abs=0.5)
            lengths = [len(row["tokens"]) for row in found["completions"]]
            assert max(zip(map(abs, pushes), lengths, strict=True)) == (39, 3)
            assert faults(visit) == []
        if screen == screens - 1:
            page.get_by_role("button", name="Few tokens share its advantage").click()
            page.get_by_text("Correct.").wait_for()
            assert faults(visit) == []
        page.locator("#story-title").focus()
    assert words <= MOST_WORDS
    page.get_by_role("button", name="Train nano in this page").click()
    page.locator(".train-here:not([data-steps='0'])").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".train-here[data-status=stopped]").wait_for()
    assert faults(visit) == []
    page.close()
