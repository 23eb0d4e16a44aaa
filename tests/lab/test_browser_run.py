"""The views of a run in a browser: search, token lens, what if, replay, findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import pytest

from grpo.lab.catalogue import RECORDINGS
from grpo.lab.search import Query, search
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
    make_run(runs, "long", steps=3, texts=lambda step, group, sample: f"{'x😀' * 400} end {sample}")
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
    field, hits = page.get_by_placeholder("Regular expression"), page.locator(".virtual .hit").all_inner_texts()
    field.fill("(4")
    page.get_by_text("Not searched: not a regular expression: missing ) at position 2.").wait_for()
    assert page.locator(".virtual .hit").all_inner_texts() == hits, "the last results stay"
    visit.complaints.clear()  # the browser reports the refused request
    page.evaluate("history.pushState({}, '', location.search.replace(/(\\(|%28)4/, '4'))")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    page.get_by_text("Not searched").wait_for(state="detached")
    assert field.input_value() == "4"
    page.get_by_role("button", name="regular expression").click()
    page.locator(".virtual .hit").first.wait_for()
    assert faults(visit) == []
    visit.go("/runs/%zz")
    page.get_by_role("heading", name="Page not found").wait_for()


SEARCH = """async ([rows, queries]) => {
  const { search } = await import("/static/js/offline/search.js");
  const found = queries.map((query) => search({ rows }, new URLSearchParams(query)));
  return Promise.all(found.map((page) => page.catch((error) => error.message)));
}"""


def test_the_search_without_a_server_finds_the_same(visit: Visit) -> None:
    """Also what stands behind the part of a text that is shown. A pattern that takes too long is given up."""
    queries = [
        "order=-length",
        "order=reward&filters=below&text=1",
        r"regex=1&text=^\d%2B$&order=-advantage&length_max=4",
        "order=newest&reward_min=1&text=9",
        "order=oldest&step_min=1&advantage_max=0",
    ]
    check_search(visit, RECORDINGS, "tiny-arithmetic", queries)
    late = ["text=END 2", "regex=1&text=x.*end [01]$&order=oldest"]
    rows = check_search(visit, visit.lab.runs, "long", late)
    too_long = "text: this regular expression takes too long; avoid a repeat inside a repeat, such as (a+)+"
    rows[0]["text"] = "x" * 100
    assert visit.page.evaluate(SEARCH, [rows, ["regex=1&text=(x%2Bx%2B)%2By$"]]) == [too_long]


def check_search(visit: Visit, folder: Path, name: str, queries: list[str]) -> list[dict[str, Any]]:
    """The page finds in the recorded rows of a run's first steps what the server finds; returns the rows."""
    with Run.open(folder, name, readonly=True) as run:

        def found(query: str) -> list[dict[str, Any]]:
            asked = dict(parse_qsl(query)) | {"step_max": "2"}
            rows, begin = [], None
            while True:
                page = search(run, Query.parse(asked, begin))
                rows += page["rows"]
                if (begin := page["next"]) is None:
                    return rows

        rows = found("order=oldest&whole=1")
        expected = [found(query) for query in queries]
    for query, wanted, page in zip(queries, expected, visit.page.evaluate(SEARCH, [rows, queries]), strict=True):
        assert 5 < len(wanted) <= len(rows), query
        assert page["rows"] == wanted[:60], query
        assert page["next"] == (60 if len(wanted) > 60 else None), query
    return rows


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
    visit.go(f"{EXAMPLE}/replay?step=8")
    columns = visit.page.locator(".probe-columns")
    assert columns.locator(".probe-samples").count() == 1
    assert "The next evaluation comes after 10 steps." in columns.inner_text()
    columns.get_by_role("button").click()
    columns.get_by_text("After 10 steps").wait_for()
    assert "step=9" in visit.page.url
    assert columns.locator(".probe-samples").count() == 2
    visit.go(f"{EXAMPLE}/replay?step=79")
    columns.get_by_text("After 80 steps").wait_for()
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
    visit.go(f"{EXAMPLE}/tokens?step=4&group=0")
    visit.page.locator(".token.clipped").click()
    visit.page.get_by_text("Clipped below: no gradient from the reward; the KL term remains.").wait_for()
    # Its ratio, 0.7975, is below 0.8 and its advantage negative: the only such token of the group.
    assert visit.page.locator(".token.clipped").all_inner_texts() == ["1"]
    mark = visit.page.locator(".token.clipped").evaluate("(one) => getComputedStyle(one).backgroundImage")
    assert "repeating-linear-gradient" in mark
    assert "clipped" in visit.page.locator(".scale").inner_text()
    assert "Step 4 (0 to 79)" in visit.page.locator(".stepbar").inner_text()
    visit.go(f"{EXAMPLE}/findings")
    visit.page.get_by_role("heading", name="No problems found").wait_for()
    with Run.open(RECORDINGS, "tiny-arithmetic", readonly=True) as run:
        groups = [group for step in range(70, 80) for group in run.groups(step)]
    right = [all(done["correct"] for done in group["completions"]) for group in groups]
    said = visit.page.locator("[data-all-right]").inner_text()
    assert f"last 10 steps shown, {100 * sum(right) / len(right):.0f}% of the groups were all right" in said
    visit.go("/runs")
    visit.page.get_by_role("link", name="From a first run to why it worked").click()
    visit.page.locator(".path li").first.wait_for()
    visit.settle()
    assert abs(visit.page.evaluate("document.getElementById('path').getBoundingClientRect().top")) < 100
    visit.go("/runs/diverged/findings")
    [cause] = visit.page.locator(".cause").all()
    assert cause.locator("h3").all_inner_texts() == ["clipped step 29", "kl step 29", "entropy collapse step 29"]
    assert cause.locator(".consequences h3").count() == 2
    assert faults(visit) == []


DIFFERENCE = """async (pairs) => {
  const { difference } = await import("/static/js/diff.js");
  return pairs.map(([before, after]) => difference(before, after));
}"""


def test_one_prompt_across_steps_with_what_changed(visit: Visit) -> None:
    """The parts of a difference make up both texts, and as much is the same as in the longest common subsequence."""
    page = visit.page
    random = Random(3)
    pairs = [["".join(random.choices("ab, 12", k=random.randrange(12))) for _ in range(2)] for _ in range(60)]
    for (before, after), parts in zip(pairs, page.evaluate(DIFFERENCE, pairs), strict=True):
        assert "".join(text for kind, text in parts if kind != "new") == before
        assert "".join(text for kind, text in parts if kind != "gone") == after
        words = [re.findall(r"\d+|[^\W\d]+|\s+|.", text) for text in (before, after)]
        same = sum(len(re.findall(r"\d+|[^\W\d]+|\s+|.", text)) for kind, text in parts if kind == "same")
        assert same == common(*words)
    visit.go(f"{EXAMPLE}/prompts")
    assert page.locator(".moment").count() == 9
    assert page.locator(".change-head h2").all_inner_texts() == [
        "Before training, pinned 38% right",
        "After 80 steps, pinned 100% right",
    ]
    sides = page.locator(".change").first.locator(".side .untrusted")
    assert sides.all_inner_texts() == ["1666", "(4,12;6,18;4,8,9,1)1984"]
    assert page.locator(".change").first.locator("del, ins").all_inner_texts() == sides.all_inner_texts()
    page.get_by_role("button", name="After 10 steps").click()
    page.wait_for_url("**to=1")
    page.locator(".prompt-choice select").select_option("train-3-0")
    page.locator(".change-head", has_text="Step 47, in training").wait_for()
    page.locator(".change-head").get_by_role("link", name="group").first.click()
    page.wait_for_url("**/groups?step=3&group=0")
    page.locator(".group-order select").first.select_option("-length")
    page.locator(".group-order select").last.select_option("mixed")
    page.wait_for_url("**kind=mixed**")
    lengths = [int(re.findall(r"(\d+) tokens", text)[0]) for text in page.locator(".group-button").all_inner_texts()]
    assert lengths == sorted(lengths, reverse=True)
    page.get_by_label("Completions by").select_option("reward")
    page.wait_for_url("**by=reward**")
    assert faults(visit) == []


def common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + common(a[1:], b[1:])
    return max(common(a[1:], b), common(a, b[1:]))
