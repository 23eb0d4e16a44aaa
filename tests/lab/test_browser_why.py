"""Chapter 1 in a browser: clean at every depth, played through, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_the_update_is_played_by_keyboard(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/why?q-open=full&q-sft=no&m-math=run&own=I+get+14.")
    page = visit.page
    phases = page.get_by_role("list", name="Phases").get_by_role("button")
    assert page.locator("[data-trial=first-run] h3").all_inner_texts() == ["right answers?", "answers with working?"]
    assert page.locator("#update .answers li > :is(.answer-advantage, .answer-reward):visible").count() == 0
    for phase in range(1, 5):
        phases.nth(phase).focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**phase={phase}*")
        visit.settle()
    found = answer("why", "update", {"phase": "4"})
    page.locator("[data-number=update-mean]").wait_for()
    assert visit.number("update-mean") == pytest.approx(found["measured"]["reward_mean"], abs=5e-4)
    page.locator("input[name=g]").press("ArrowRight")
    page.wait_for_url("**g=9*")
    visit.settle()
    found = answer("why", "update", {"phase": "4", "g": "9"})
    shown = page.get_by_role("list", name="The group: advantage, answer, reward, probability")
    shown.locator("li").nth(8).wait_for()
    advantages = [float(text.replace("−", "-")) for text in shown.locator(".advantage").all_inner_texts()]
    assert advantages == pytest.approx([row["advantage"] for row in found["completions"]], abs=5e-3)
    scored = answer("why", "score", {"own": "I get 14."})
    assert visit.number("score-mean") == pytest.approx(scored["statistics"]["reward_mean"], abs=5e-4)
    assert "yours · read 14 (the last number): same number" in page.locator("li.own").inner_text()
    judged = answer("why", "judge", {"spread": "0.2", "noise": "0.1"})
    assert visit.number("judge-wrong") == pytest.approx(judged["wrong_sign"], abs=5e-3)
    assert visit.number("scratch-signal") == pytest.approx(answer("why", "scratch", {})["signal"], abs=5e-5)
    assert page.locator(".missed").count() == 0, "the guesses were right"
    assert faults(visit) == []
    page.close()


@pytest.mark.parametrize("query", ["depth=math&phase=4&eval=8&marker=wait", "depth=code&gold=Paris&group=Paris%0ALyon"])
def test_every_depth_is_clean(chromium: Any, classroom: Lab, query: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/why?{query}")
    if "math" in query:
        assert "after 80 steps 0%" in visit.page.locator("#aha").inner_text()
        assert visit.page.locator("#update .equation").count() == 2
        found = answer("why", "update", {"phase": "4"})
        assert visit.number("update-norm") == pytest.approx(found["measured"]["grad_norm"], abs=5e-4)
        assert visit.number("update-loss") == 0
        assert visit.number("memory-saved") == pytest.approx(answer("why", "cards", {})["memory_saved"], abs=5e-3)
    else:
        visit.page.get_by_text("def one_update").first.wait_for()
        assert visit.number("score-std") == pytest.approx(0.5**0.5, abs=5e-4)
    assert faults(visit) == []
    visit.page.close()
