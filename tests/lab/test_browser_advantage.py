"""Chapter 3 in a browser: clean at every depth, moved by the keyboard, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpo.core import group_advantages
from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_sliders_by_keyboard_and_numbers_of_the_engine(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/advantage?of=six")
    page = visit.page
    rewards = [1.0, 1.0, 0.0, 0.0, 0.0, 0.5]
    [expected] = group_advantages(torch.tensor([rewards], dtype=torch.float64)).tolist()
    assert [visit.number(f"advantage-{i}") for i in range(6)] == pytest.approx(expected, abs=0.005)

    page.get_by_label("Reward of answer 3", exact=True).press("End")
    page.wait_for_url("**r=1%2C1%2C1%2C0%2C0%2C0.5")
    visit.settle()
    [moved] = group_advantages(torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.5]], dtype=torch.float64)).tolist()
    visit.await_number("mean", "0.583")
    assert [visit.number(f"advantage-{i}") for i in range(6)] == pytest.approx(moved, abs=0.005)

    # Another group starts with its own rewards, and its presets have its size.
    page.get_by_role("radio", name="eight recorded answers").check()
    visit.await_number("mean", "0.375")
    assert page.locator(".siblings li").count() == 8
    page.get_by_label("Reward of answer 1", exact=True).press("End")
    visit.await_number("mean", "0.500")
    page.get_by_role("radio", name="six invented rewards").check()
    visit.await_number("mean", "0.417")
    page.get_by_role("button", name="one right").click()
    visit.await_number("mean", "0.167")
    assert page.locator(".siblings li").count() == 6
    assert visit.number("distinct") == 15
    assert faults(visit) == []

    visit.go("/learn/advantage?depth=math")
    found = answer("advantage", "ancestors", {})["ancestors"]["grpo"]
    assert visit.number("cosine") == pytest.approx(found["cosine"], abs=5e-5)
    page.locator("input[name=ag]").press("ArrowRight")
    page.wait_for_url("**ag=5*")
    visit.settle()
    found = answer("advantage", "ancestors", {"g": "5"})["ancestors"]["grpo"]
    visit.await_number("cosine", f"{found['cosine']:.4f}")
    page.get_by_role("button", name="1992 REINFORCE").click()
    assert visit.number("length") == 1.0
    page.close()


@pytest.mark.parametrize(
    "query",
    [
        "depth=math&same=depends&direct=down&why_groups=third&unbiased=run&ancestor=trpo",
        "depth=code&normal=run&batchnorm=up",
    ],
)
def test_every_depth_is_clean(chromium: Any, classroom: Lab, query: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/advantage?{query}")
    if "math" in query:
        nano = {row["text"]: row for row in answer("advantage", "nano", {})["completions"]}
        assert visit.number("direct-after") == pytest.approx(nano["164"]["after"], abs=5e-4)
        assert visit.number("cosine-2") == pytest.approx(0.889, abs=5e-4)
        assert visit.page.locator(".missed", has_text="Not quite").count() == 0, "the guesses were right"
    else:
        visit.page.get_by_text("def group_advantages").first.wait_for()
    assert faults(visit) == []
    visit.page.close()
