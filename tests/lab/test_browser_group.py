"""Chapter 2 in a browser: clean at every depth, moved by the keyboard, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.core import zero_signal_chance
from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_sliders_by_keyboard_and_numbers_of_the_engine(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/group?q-size=pairs&sp=0.1")
    page = visit.page
    assert visit.number("zero-signal") == pytest.approx(zero_signal_chance(0.5, 8), abs=5e-5)
    for _ in range(3):
        page.locator("input[name=p]").press("ArrowRight")
    page.wait_for_url("**p=0.53*")
    visit.settle()
    page.locator('[data-number=zero-signal]:not(:text-is("0.78%"))').wait_for()
    assert visit.number("zero-signal") == pytest.approx(zero_signal_chance(0.53, 8), abs=5e-5)
    page.locator("input[name=g]").press("End")
    page.wait_for_url("**g=64*")
    visit.settle()
    found = answer("group", "samples", {"g": "64"})
    visit.await_number("group-distinct", str(found["distinct"]))
    assert visit.number("group-mean") == pytest.approx(found["statistics"]["reward_mean"], abs=5e-4)
    # Where right answers are rare, the card of 8 shows how often it has no signal, and says nothing else.
    card = page.locator(".size-cards > div").nth(1)
    assert visit.number("size-8") == pytest.approx(zero_signal_chance(0.1, 8), abs=5e-3)
    assert card.locator("p").inner_text() == "The usual choice."
    assert faults(visit) == []
    page.close()


@pytest.mark.parametrize("depth", ["math", "code"])
def test_every_depth_is_clean(chromium: Any, classroom: Lab, depth: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/group?depth={depth}&vp=0.3&logg=1&sweep=3&q-bias=no")
    assert visit.number("true-gradient") == pytest.approx(0.21, abs=5e-5)
    assert visit.page.locator(".missed").count() == 0, "the guess was right"
    [cold] = [row for row in answer("group", "temperatures", {})["rows"] if row["temperature"] == 0.8]
    assert visit.number("t-norm") == pytest.approx(cold["grad_norm"], abs=5e-3)
    assert visit.number("t-gap") == pytest.approx(cold["gap"], abs=5e-4)
    assert visit.page.locator("[data-number=one-std]").inner_text() == "not a number"
    assert visit.number("across") == pytest.approx(answer("group", "baselines", {})["variance"]["across"], abs=5e-4)
    if depth == "code":
        panel = visit.page.locator("details.code", has_text="One token: inverse transform")
        panel.locator("summary").click()
        visit.page.get_by_text("def sample_token").wait_for()
    assert faults(visit) == []
    visit.page.close()
