"""Chapter 5 in a browser: clean at every depth, clicked and moved, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_tokens_steps_and_checks(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/credit?q-imperfect=slows&q-better=ppo")
    page = visit.page
    found = answer("credit", "tokens", {})
    assert visit.number("token-grpo") == pytest.approx(found["tokens"][0]["grpo"], abs=5e-3)
    assert visit.number("token-true") == pytest.approx(found["tokens"][0]["true_gain"], abs=5e-3)
    page.get_by_role("group", name="Tokens of the answer").get_by_role("button").nth(3).press("Enter")
    page.wait_for_url("**token=3*")
    assert visit.number("token-grpo") == pytest.approx(found["tokens"][0]["grpo"], abs=5e-3), "the same for all"
    assert abs(visit.number("token-true")) < 0.05

    learning = answer("credit", "bootstrapping", {})
    assert visit.number("group-distance") == pytest.approx(learning["group_distance"], abs=5e-3)
    assert visit.number("critic-wrong") == 0
    page.locator("input[name=learned]").press("End")
    visit.await_number("critic-distance", f"{learning['critic'][-1]['distance']:.2f}")
    assert visit.number("critic-wrong") == pytest.approx(learning["critic"][-1]["wrong"], abs=5e-3)

    page.get_by_role("radio", name="process").check()
    page.wait_for_url("**mode=process*")
    first = page.locator(".step-rows li").first
    first.locator(".mark").first.press("Enter")
    page.wait_for_url("**turned=0.0*")
    visit.settle()
    turned = answer("credit", "steps", {"turned": "0.0"})["completions"][0]
    first.locator(".mark.turned").first.wait_for()
    shown = first.locator(".step-part .tiny").all_inner_texts()
    pushes = [turned["process"][step["begin"]] for step in turned["steps"]]
    assert [float(text.replace("−", "-")) for text in shown] == pytest.approx(pushes, abs=5e-3)

    row = answer("credit", "strategies", {})["rows"][2]
    page.get_by_role("button", name="right with wrong working").click()
    page.wait_for_url("**look=lucky*")
    assert visit.number("strategy-advantage") == pytest.approx(row["advantage"], abs=5e-3)
    assert page.locator(".missed").count() == 0, "the guesses were right"
    assert faults(visit) == []
    page.close()


@pytest.mark.parametrize("query", ["depth=math&mode=process&q-light=same&m-token=run", "depth=code&by=gae"])
def test_every_depth_is_clean(chromium: Any, classroom: Lab, query: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/credit?{query}")
    if "math" in query:
        [first, *_] = answer("credit", "tokens", {"lam": "1"})["tokens"]
        assert visit.number("gae-one") == pytest.approx(first["gae"], abs=5e-4)
        visit.page.locator("input[name=lam]").press("Home")
        visit.await_number("token-gae", f"+{first['surprise']:.2f}")
        distinct = {row["label"]: row["distinct"] for row in answer("credit", "presets", {})["rows"]}
        assert visit.number("distinct-dr_grpo") == distinct["dr_grpo"] == 1
        assert visit.number("distinct-ppo") == distinct["ppo"]
        assert visit.page.locator(".missed").count() == 0, "the guess was right"
    else:
        visit.page.get_by_text("ZeroDivisionError: division by zero").wait_for()
        visit.page.get_by_text("def close_and_brief").first.wait_for()
    assert faults(visit) == []
    visit.page.close()
