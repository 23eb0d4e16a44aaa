"""Chapter 6 in a browser: clean at every depth, moved by the keyboard, and its numbers the planner's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from grpo.model.plan import GIB
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser

CROSSED = """() => {
  const frame = document.querySelector(".tree-box").getBoundingClientRect();
  const paths = [...document.querySelectorAll(".tree-lines path")];
  const along = (path) => Array.from({ length: path.getTotalLength() }, (_, at) => path.getPointAtLength(at));
  const points = paths.flatMap(along).map(({ x, y }) => [x + frame.left, y + frame.top]);
  const crossed = [...document.querySelectorAll("[data-node]")].filter((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return points.some(([x, y]) => x > left + 1 && x < right - 1 && y > top + 1 && y < bottom - 1);
  });
  return [paths.length, crossed.map((one) => one.dataset.node)];
}"""
"""The number of lines of the family tree, and the boxes that they run through."""


def gib(visit: Any, name: str) -> float:
    text = visit.page.locator(f"[data-number='{name}']").first.inner_text()
    return float(text.removesuffix(" GiB").replace(",", ""))


def test_sliders_by_keyboard_and_numbers_of_the_planner(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/costs?q-reward=down&q-sft=16000")
    page = visit.page
    found = answer("costs", "memory", {})
    assert gib(visit, "grpo-total") == pytest.approx(found["rows"][0]["total"] / GIB, abs=0.5)
    assert visit.number("saved") == pytest.approx(found["saved"], abs=5e-4)
    page.locator("input[name=size]").first.press("ArrowRight")
    page.wait_for_url("**size=7.5*")
    page.get_by_text("weights only", exact=True).click()
    page.wait_for_url("**count=weights*")
    found = answer("costs", "memory", {"size": "7.5", "count": "weights"})
    wanted = f"{found['rows'][0]['total'] / GIB:.1f} GiB"
    page.locator("[data-number=grpo-total]", has_text=wanted).wait_for()
    assert visit.number("saved") == pytest.approx(1 / 3, abs=5e-4)

    lines, crossed = page.evaluate(CROSSED)
    assert lines == page.locator(".node.related").count()
    assert crossed == []
    # The tree loads a preset of the engine.
    page.locator("[data-node=dr_grpo]").click()
    page.get_by_role("heading", name="Dr. GRPO").wait_for()
    untaught = answer("costs", "no-warm-start", {})["untaught_wait"]
    assert visit.number("untaught-wait") == pytest.approx(untaught, rel=1e-3)
    assert page.locator(".missed").count() == 0, "the guesses were right"
    assert faults(visit) == []
    page.close()


def test_several_gpus_by_link_and_by_click(chromium: Any, classroom: Lab) -> None:
    """The address says what is planned; a click changes the address and every number."""
    asked = {"model": "qwen2.5-7b", "gpu": "a100-80", "gpus": "4", "nodes": "16", "prompts": "128"}
    query = "depth=code&sgpu=a100-80&gpus=4&nodes=16&sprompts=128&node=gspo"
    visit = open_page(chromium, classroom, f"/learn/costs?{query}")
    page, section = visit.page, visit.page.locator("#gpus")
    found = answer("costs", "scale", asked)
    assert found["shard"] == "weights"
    assert visit.page.locator("[data-number=mode]").inner_text() == "B"
    assert gib(visit, "scale-peak") == pytest.approx(found["modes"]["weights"]["peak"] / GIB, rel=5e-3)
    assert visit.number("weak-efficiency") == pytest.approx(found["weak"][-1]["efficiency"], abs=5e-3)
    section.get_by_text("1 Gbit/s", exact=True).click()
    page.wait_for_url("**between=1gbit*")
    slow = answer("costs", "scale", {**asked, "between": "1gbit"})
    visit.await_number("weak-efficiency", f"{100 * slow['weak'][-1]['efficiency']:.0f}%")
    section.get_by_text("replicated", exact=True).first.click()
    page.wait_for_url("**shard=none*")
    visit.await_number("mode", "replicated")
    page.locator("input[name=sprompts]").press("End")
    page.wait_for_url("**sprompts=512*")
    assert page.locator("#gpus [data-collective=weights]").count() == 0, "replicated weights are not published"
    page.get_by_text("The planner's memory").click()
    page.get_by_text("def memory_of").first.wait_for()
    assert faults(visit) == []
    page.close()


def test_the_mathematics_are_clean(chromium: Any, classroom: Lab) -> None:
    opened = "m-clip=run&m-compute=run&m-math=run&m-token=run&q-open=less&q-ppo=no&node=dr_grpo&moved=yes"
    opened += "&q-state=some&q-size=silent&q-light=free&q-batch=easy&lift=5"
    visit = open_page(chromium, classroom, f"/learn/costs?depth=math&{opened}")
    page = visit.page
    assert (visit.number("trained-float32"), visit.number("frozen-bfloat16")) == (16, 2)
    rows = answer("costs", "measured", {})["rows"]
    assert gib(visit, "measured-qwen2_5-1_5b-mixed-ppo") == pytest.approx(rows[5]["measured"] / GIB, abs=0.5)
    noise = {row["name"].split(",")[0]: row["noise"] for row in answer("costs", "methods", {"lift": "5"})["estimators"]}
    for name in ("GRPO", "REINFORCE"):
        assert float(page.locator(f"[data-noise={name}]").inner_text()) == pytest.approx(noise[name], abs=5e-4)
    page.locator("input[name=max_kl]").press("End")
    step = answer("costs", "one-step", {"max_kl": "0.5"})["rows"]["trpo"]["reward"]
    page.locator("[data-step=trpo]", has_text=f"{step:.4g}").wait_for()
    page.locator("[data-changed=aggregate]", has_text="constant").wait_for()
    assert page.locator("[data-claim=dapo]").inner_text() == "mean"
    assert page.locator("[data-claim=length]").inner_text() == "1"
    assert visit.number("m-held") > 0
    assert page.locator("[data-default=DeepSeekMath]").inner_text() == "64"
    assert page.locator(".missed").count() == 0
    assert faults(visit) == []
    page.close()
