"""Chapter 7 in a browser: clean at every depth, its trials recorded, its numbers those of the records."""

from __future__ import annotations

import re
from typing import Any

import pytest

from grpo.config import Config
from grpo.lab.chapters import answer
from grpo.lab.trials.recorded import recorded
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def test_intuition_has_one_knob_and_a_clinic_in_plain_words(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/train?smoother=run&patient=patient-4")
    page = visit.page
    assert page.locator(".knob input[type=range]").count() == 1
    page.get_by_role("button", name="the reward rewards the wrong thing").click()
    page.get_by_text("Correct:").wait_for()
    visit.settle()
    words = " ".join(visit.words(".lesson-section"))
    assert re.findall("ε|nats|ratio|standard deviation|variance|entropy|finding", words) == []
    kept = recorded("dashboard")
    assert kept is not None
    [of_32] = [arm["accuracy"]["after"]["mean"] for arm in kept["outcome"]["arms"] if arm["label"] == "G 32"]
    row = page.locator("[data-trial=dashboard] tr", has_text="groups of 32").inner_text()
    assert f"{of_32:.1%}" in row
    assert faults(visit) == []
    page.close()


def test_runs_and_the_clinic(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/train?depth=math&smoother=run")
    page = visit.page
    assert page.locator("[data-trial=updates]").count() == 0, "its curve would answer the question"
    assert "except β" not in page.locator("#main").inner_text()
    page.get_by_role("button", name="It stayed near 0").click()
    page.locator("[data-trial=updates]").wait_for()
    visit.settle()
    assert page.locator("[data-trial=ppo-and-grpo]").get_attribute("data-status") == "recorded"
    for row in answer("train", "smoothness", {}):
        assert visit.number(f"jump-{row['label']}") == pytest.approx(row["jump"], abs=5e-5)
    kept = recorded("updates")
    assert kept is not None
    losses = [abs(point["mean"]) for point in kept["outcome"]["arms"][0]["bands"]["loss"]]
    assert visit.number("most-loss") == pytest.approx(max(losses), abs=5e-4)
    for chart, title in zip(
        page.locator("[data-trial=kl-over-beta] .chart-frame").all(), ("nats", "reward"), strict=True
    ):
        assert any(title in text for text in chart.locator("svg text").all_text_contents()), "the title of its y axis"

    page.get_by_role("button", name="Patient 4").click()
    page.get_by_role("button", name="the reward rewards the wrong thing").click()
    page.locator("[data-number=no-finding]").wait_for()
    page.get_by_role("button", name="Patient 1").click()
    page.get_by_role("button", name="learning rate far too high").click()
    page.get_by_text("Correct:").wait_for()
    page.get_by_text("reward fall").first.wait_for()
    visit.settle()
    assert faults(visit) == []
    page.close()


@pytest.mark.parametrize("query", ["depth=math", "depth=code"])
def test_every_depth_is_clean(chromium: Any, classroom: Lab, query: str) -> None:
    visit = open_page(chromium, classroom, f"/learn/train?{query}")
    if "code" in query:
        found = answer("train", "clip_fractions", {})
        assert visit.number("listed") == pytest.approx(found["listed"], abs=0.005)
        assert visit.number("clipped") == pytest.approx(found["trainer"], abs=0.005)
    else:
        for setting, value in (("group_size", 8), ("loss-beta", 0.04), ("optimizer-epochs", 1), ("lr", Config.lr)):
            assert visit.number(f"default-{setting}") == value
        visit.page.locator("input[name=beta]").press("End")
        end = answer("train", "drift", {"beta": "1"})["rows"][-1]["reverse"]
        visit.await_number("drift-end", f"{end:.3f}")
    assert faults(visit) == []
    visit.page.close()
