"""The views of a run in a browser: search, token lens, what if, replay, findings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from grpo.lab.catalogue import RECORDINGS
from grpo.record.store import Run
from helpers.records import make_run
from helpers.visit import Lab, Visit, faults, open_page, serving

pytestmark = pytest.mark.browser

EXAMPLE = "/runs/~tiny-arithmetic"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runs = tmp_path_factory.mktemp("runs")
    worse = {"clip_low": 0.15, "clip_high": 0.1}
    make_run(runs, "diverged", metrics=lambda step: {"kl": step / 10, "entropy": 1 if step < 10 else 0.001, **worse})
    yield from serving(runs)


@pytest.fixture
def visit(chromium: Any, lab: Lab) -> Iterator[Visit]:
    visit = open_page(chromium, lab, f"{EXAMPLE}/findings")
    yield visit
    visit.page.close()


def test_completions_are_searched_by_pattern_and_sorted_by_every_named_column(visit: Visit) -> None:
    visit.go(f"{EXAMPLE}/completions?regex=1&text=%5E%5Cd%2B%24&step_max=9")
    page = visit.page
    head = page.locator(".hit-head")
    assert head.inner_text().split("\n") == ["Step ↓", "Advantage", "Reward", "Prompt and completion", "Tokens"]
    for column, order in (("Tokens", "-length"), ("Tokens", "length"), ("Reward", "-reward"), ("Step", "newest")):
        head.get_by_role("button", name=column).click()
        page.wait_for_url(f"**order={order}**")
    page.get_by_label("Step to").fill("3")
    page.wait_for_url("**step_max=3**")
    page.locator(".virtual .hit").first.get_by_text("3", exact=True).first.wait_for()
    assert all(text.isdecimal() for text in page.locator(".virtual .hit-text > :last-child").all_inner_texts())
    page.get_by_placeholder("Regular expression").fill("(4")
    page.get_by_text("text: not a regular expression: missing ) at position 2").wait_for()
    visit.complaints.clear()  # the browser reports the refused request
    page.get_by_role("button", name="regular expression").click()
    page.locator(".virtual .hit").first.wait_for()
    assert faults(visit) == []


def test_what_if_and_replay_show_only_what_differs(visit: Visit) -> None:
    """Bars of Dr. GRPO, a constant over all tokens, are drawn to their own scale; before training there is no after."""
    visit.go(f"{EXAMPLE}/whatif?step=5")
    assert visit.page.locator("[data-scales=one]").count() == 1
    visit.page.get_by_role("button", name="dr_grpo").click()
    visit.page.wait_for_url("**aggregate=constant**")
    visit.page.locator("[data-scales=two]").wait_for()
    for bars in (".ghost", "i:not(.ghost)"):
        heights = visit.page.locator(f".push-bars {bars}").evaluate_all("(all) => all.map((bar) => bar.style.height)")
        assert max(float(height.rstrip("%")) for height in heights) == pytest.approx(50)
    visit.go(f"{EXAMPLE}/replay?step=9")
    columns = visit.page.locator(".probe-columns")
    assert columns.locator(".probe-samples").count() == 1
    assert "The next evaluation comes after 10 steps." in columns.inner_text()
    columns.get_by_role("button").click()
    columns.get_by_text("After 10 steps").wait_for()
    assert columns.locator(".probe-samples").count() == 2
    assert visit.complaints == []


def test_the_token_lens_moves_by_arrows_and_recomputes_and_findings_start_with_their_cause(visit: Visit) -> None:
    visit.go(f"{EXAMPLE}/tokens?step=5&lens=ratio")
    visit.page.locator("h1").click()
    visit.page.keyboard.press("ArrowRight")
    visit.page.wait_for_url("**step=6**")
    assert "lens=ratio" in visit.page.url
    visit.go(f"{EXAMPLE}/tokens?step=0&group=7&sample=0")
    visit.page.get_by_role("button", name="Recompute").click()
    mark = visit.page.locator("[data-recomputed]")
    mark.wait_for()
    assert "with the model tiny, from before training: the weights that sampled this group" in mark.inner_text()
    visit.page.get_by_role("radio", name="Probability").check()
    shown = visit.page.locator(".lens-row.chosen .token")
    shown.first.wait_for()
    chances = [(token.get_attribute("title") or "").removeprefix("Probability ").rstrip("%") for token in shown.all()]
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        logprob = run.groups(0)[7]["completions"][0]["logprob"]
    assert math.prod(float(chance) / 100 for chance in chances) == pytest.approx(math.exp(logprob), rel=0.02)
    assert visit.page.get_by_role("radio", name="Ratio").count() == 0
    visit.go("/runs/diverged/findings")
    [cause] = visit.page.locator(".cause").all()
    assert cause.locator("h3").all_inner_texts() == ["clipped step 29", "kl step 29", "entropy collapse step 29"]
    assert cause.locator(".consequences h3").count() == 2
    assert faults(visit) == []
