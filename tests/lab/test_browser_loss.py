"""Chapter 4 in a browser: clean at every depth, moved by the keyboard, and its numbers the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.lab.chapters import answer
from helpers.visit import Lab, faults, open_page

pytestmark = pytest.mark.browser


def shown(page: Any, name: str, text: str) -> None:
    """Waits until the number has become this."""
    page.locator(f"[data-number='{name}']", has_text=text).first.wait_for()


def test_sliders_by_keyboard_and_numbers_of_the_engine(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/loss?q-clip=no&q-zero=loss")
    page = visit.page
    assert visit.number("ratio") == pytest.approx(1.5)
    # Down from 45% to 31%: ρ = 31/30, inside the range, and the push is ρ·A.
    for _ in range(14):
        page.locator("input[name=new]").press("ArrowLeft")
    page.wait_for_url("**new=0.31*")
    shown(page, "ratio", "1.033")
    found = answer("loss", "ratio", {"new": "0.31"})
    assert visit.number("ratio-push") == pytest.approx(found["push"], abs=5e-4)

    # The first update on the reader's group: the advantage shared out over tokens and answers, less no KL yet.
    own = answer("loss", "own", {"updates": "1"})
    assert visit.number("chosen-push") == pytest.approx(own["rows"][0]["values"]["push"][2], abs=5e-4)
    page.locator(".tokens").nth(2).locator(".token").first.click()
    page.wait_for_url("**sample=2*")
    shortest = own["rows"][2]
    visit.await_number("chosen-push", f"−{abs(shortest['values']['push'][0]):.3f}")
    assert abs(shortest["values"]["push"][0]) == max(abs(p) for row in own["rows"] for p in row["values"]["push"])

    # A bar is its slider: dragged to 90% it shows 90%, and the others share the rest as before.
    page.locator("input[name=policy-0]").fill("0.9")
    visit.await_number("policy-share-0", "90%")
    assert visit.number("policy-share-3") == pytest.approx(0.1 * 0.6 / 0.95, abs=5e-3)
    box = page.locator("input[name=policy-1]").bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    visit.await_number("policy-share-1", "50%")

    for title in ("distance from the reference", "expected reward"):
        assert page.locator("#drift svg text", has_text=title).count() == 1, "every axis of the pair has its title"

    # One update: loss 0, gradient not.
    assert visit.number("first-norm") > 0.1
    assert abs(visit.number("first-loss")) < 1e-6
    assert page.locator(".missed").count() == 0, "the guesses were right"
    assert faults(visit) == []
    page.locator("textarea[name=texts]").fill("102\nabc")
    page.get_by_text("nano's vocabulary does not have").first.wait_for()
    page.close()


def test_every_token_is_worked_out(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/loss?depth=math&no-clipping=run&new=0.2&rho=1.4&ca=-1")
    page = visit.page
    # 20% from 30%, of a good answer: the clip raises nothing, so the ratio counts as it is.
    assert (visit.number("ratio-counts"), visit.number("ratio-gain")) == (0.6667, 0.6667)
    # Moved the wrong way: not clipped, and the note says what the push is.
    assert visit.number("clip-push") == pytest.approx(-1.4)
    assert "ratio × advantage" in page.locator("#clip .stat").first.inner_text()
    own = answer("loss", "own", {})
    assert visit.number("sum_of_shares") == pytest.approx(own["sum_of_shares"], rel=1e-4)
    assert visit.number("trainer_loss") == pytest.approx(own["sum_of_shares"], rel=1e-4)
    assert visit.number("share") == pytest.approx(answer("loss", "token", {"token": "2"})["share"], rel=1e-5)
    page.locator(".tokens").nth(1).locator(".token").nth(4).click()
    page.wait_for_url("**sample=1&token=4*")
    page.locator(".worked-token", has_text="1").wait_for()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**sample=1&token=5*")
    worked = answer("loss", "token", {"sample": "1", "token": "5"})
    page.locator(".worked-token", has_text="0").wait_for()
    visit.settle()
    assert visit.number("push") == pytest.approx(worked["push"], abs=5e-7)
    clipped = answer("loss", "own", {"updates": "8", "lr": "0.001"})["updates"][-1]
    assert visit.number("preset-clipped") == pytest.approx(clipped["clip_low"] + clipped["clip_high"], abs=5e-4)
    histogram = answer("loss", "histogram", {})
    assert visit.number("outside") == histogram["outside"]
    held = answer("loss", "drift", {"beta": "0.2"})["ends"][1]["reverse"]
    assert visit.number("drift-held") == pytest.approx(held, abs=5e-4)
    page.close()


def test_the_mathematics_are_clean(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/loss?depth=math&token=-1&k1=run&fa=-1&from=recorded")
    page = visit.page
    kinds = {kind: page.locator(f"[data-match={kind}]").inner_text() for kind in ("k1", "k2", "k3", "k3_ratio")}
    reverse = "the reverse KL"
    assert kinds == {"k1": "nothing (zero)", "k2": reverse, "k3": "the forward KL", "k3_ratio": reverse}
    bars = answer("loss", "bars", {})
    assert visit.number("reverse") == pytest.approx(bars["reverse"], abs=5e-5)
    page.locator("input[name=policy-3]").press("Home")
    policy = {"policy": "0.1249,0.3746,0.4995,0.001"}
    shown(page, "forward", f"{answer('loss', 'bars', policy)['forward']:.4g}")
    fraction = answer("loss", "fraction", {"advantage": "-1"})
    assert (visit.number("by_comparison"), visit.number("by_gradient")) == (0.4, 0.2)
    assert visit.number("rounding") == pytest.approx(fraction["rounding"], abs=5e-4)
    assert "keeps it no closer" in page.locator("#pulls .refutation").inner_text()
    assert faults(visit) == []
    page.close()


def test_the_code_is_clean(chromium: Any, classroom: Lab) -> None:
    visit = open_page(chromium, classroom, "/learn/loss?depth=code&token=-1&preset=dapo")
    assert visit.number("fifty") == pytest.approx(visit.number("trainer"), rel=1e-4)
    visit.page.get_by_text("def grpo_loss_in_fifty_lines").first.wait_for()
    visit.page.get_by_text("epsilon_high=0.28").wait_for()
    assert faults(visit) == []
    visit.page.close()
