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
            assert (
                "add up to 2; divided by one less than the answers, √(2 ÷ 7) = 0.53."
                in page.locator(".story-screen").inner_text()
            )
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
            assert "0.94 ÷ 3 tokens ÷ 8 answers = 0.039" in page.locator(".story-screen").inner_text()
            assert faults(visit) == []
        if screen == 7:
            # Both begin with 7, so it is pushed down twice: 79 from 3.0 to 0.8%, 65 from 1.5 to 1.3%.
            assert "79 and 74 share their 7" in page.locator(".story-screen").inner_text()
            assert [visit.number(f"story-after-{place}") for place in (2, 3)] == pytest.approx([0.013, 0.008])
            risen = page.locator("b.above[data-number^=story-after]").count()
            assert risen == sum(row["reward"] for row in found["completions"]) == 4
        if screen == 8:
            assert visit.number("story-clip") == 1.1
            # The jump is vertical: two points of the line at the same place, one at the bottom.
            page.locator(".story-screen svg path").first.wait_for(state="attached")
            paths = page.eval_on_selector_all(
                ".story-screen svg path", "all => all.map((one) => one.getAttribute('d'))"
            )
            path = max(paths, key=len)
            points = [tuple(map(float, point.split(","))) for point in path.lstrip("M").split("L")]
            top = min(range(len(points)), key=lambda place: points[place][1])
            drop = max(place for place, point in enumerate(points) if point[1] == points[top][1])
            assert points[drop + 1][0] == points[drop][0]
            assert points[drop + 1][1] > points[drop][1] + 50
        if screen == 9:
            free, held = answer("loss", "drift", {"beta": "0.2", "kl": "k3"})["ends"]
            for name, key in (("story-distance", "reverse"), ("story-reward", "reward")):
                assert visit.number(name) == pytest.approx(held[key], abs=5e-3)
            assert f"no pull: {100 * free['reward']:.0f}%" in page.locator(".story-screen").inner_text()
        if screen == screens - 1:
            page.get_by_role("button", name="Its reward", exact=True).click()
            page.get_by_text("A reward of 1 has advantage 0").wait_for()
            page.get_by_role("button", name="Few tokens share its advantage").click()
            page.get_by_text("Correct.").wait_for()
            assert faults(visit) == []
        page.locator("#story-title").focus()
    assert words <= MOST_WORDS
    page.close()


def test_the_story_ends_with_training_that_can_be_stopped(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/story")
    page = visit.page
    page.get_by_role("list", name="Screens").get_by_role("button").last.click()
    visit.settle()
    loads: list[Any] = []
    page.route("**/api/nano", lambda route: loads.append(route))
    with page.expect_request("**/api/nano"):
        page.get_by_role("button", name="Train the model").click()
    page.get_by_role("button", name="Stop").click()
    page.locator(".train-here[data-status=stopped]").wait_for()
    loads.pop().continue_()
    page.unroute("**/api/nano")
    page.get_by_role("button", name="Train the model").click()
    page.locator(".train-here:not([data-steps='0'])").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".train-here[data-status=stopped]").wait_for()
    assert faults(visit) == []
    page.close()
