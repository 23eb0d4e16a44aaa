"""Chapter 8 in a browser: clean at every depth, clicked and moved, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_games_tokens_and_first_guesses(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/turns?q-seven=mostly&q-read=predict")
    assert visit.page.locator("[data-trial=bisection]").count() == 1
    page = visit.page
    page.get_by_role("group", name="Eight games with this number").get_by_role("button").nth(3).click()
    page.wait_for_url("**sample=3*")
    visit.settle()
    found = answer("turns", "game", {"sample": "3"})
    assert page.locator("#game .strip > .written").count() == len(found["guesses"])
    page.get_by_role("radio", name="Guess 2").check()
    page.wait_for_url("**turn=2*")
    guess = found["guesses"][1]
    within = sum(guess["chances"][guess["low"] : guess["high"] + 1])
    assert visit.number("within") == pytest.approx(within, abs=5e-4)

    tokens = page.get_by_role("group", name="Tokens of the game").get_by_role("button")
    tokens.nth(0).click()
    page.wait_for_url("**token=0*")
    assert visit.number("token-probability") == pytest.approx(found["tokens"][0]["probability"], abs=5e-4)
    tokens.nth(2).click()
    page.wait_for_url("**token=2*")
    assert "read, not sampled" in page.locator("#tokens [data-observed]").inner_text()
    assert "observed" in (tokens.nth(2).get_attribute("class") or "")
    assert page.locator("#tokens [data-number]").count() == 0, "an observed token has no numbers"

    first = visit.number("sevens")
    page.locator("input[name=at]").press("End")
    page.wait_for_url("**at=300*")
    visit.settle()
    assert visit.number("sevens") > first
    assert faults(visit) == []
    page.close()


@pytest.mark.parametrize("depth", ["math", "code"])
def test_every_depth_is_clean(chromium: Any, classroom: Lab, depth: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/turns?depth={depth}&guesses=3")
    exact = answer("turns", "strategies", {"guesses": "3"})
    assert visit.number("best") == pytest.approx(7 / 15, abs=5e-4)
    assert visit.number("possible") == pytest.approx(exact["possible"], abs=5e-4)
    assert faults(visit) == []
    visit.page.close()
