"""What people look at: pictures of the docs show what a user gets, and every coloured part has its colour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.pictures import PICTURES, RUN, differing, picture_of, take
from helpers.records import make_episode_run, make_run
from helpers.visit import HOSTILE, Lab, Visit, open_page, serving

pytestmark = pytest.mark.browser

MOST_DIFFERING = 0.004
"""Share of squares that may differ: a letter or two in a font that another machine lacks."""
PARTS = {
    f"{RUN}/groups?step=4&group=3": {
        ".advantage.above": "color-mix(in srgb, var(--above) calc(var(--strength) * 55%), var(--mix))",
        ".advantage.below": "color-mix(in srgb, var(--below) calc(var(--strength) * 55%), var(--mix))",
        ".bar .above": "var(--above)",
        ".bar .below": "var(--below)",
        ".reward-4": "var(--reward-4)",
        ".reward-0": "var(--reward-0)",
    },
    f"{RUN}/tokens?step=5&lens=push": {
        ".token.above": "color-mix(in srgb, var(--above) calc(var(--strength) * 55%), var(--mix))",
        ".token.below": "color-mix(in srgb, var(--below) calc(var(--strength) * 55%), var(--mix))",
    },
    f"{RUN}/tokens?step=5&lens=ratio": {
        ".token.more": "color-mix(in srgb, var(--c3) calc(var(--strength) * 55%), var(--mix))",
        ".token.less": "color-mix(in srgb, var(--c2) calc(var(--strength) * 55%), var(--mix))",
    },
    f"{RUN}/whatif?step=5&scale=none": {".push-bars .above": "var(--above)", ".push-bars .below": "var(--below)"},
    "/runs/played/groups?step=1": {
        ".strip > .written.above": "color-mix(in srgb, var(--above) calc(var(--strength) * 55%), var(--mix))",
        ".strip > .written.below": "color-mix(in srgb, var(--below) calc(var(--strength) * 55%), var(--mix))",
        ".strip > .read": "var(--line)",
    },
    "/scene?phase=push": {
        ".scene-token.above": "color-mix(in oklab, var(--above) calc(var(--up) * 34%), var(--raised))",
        ".scene-token.below": "color-mix(in oklab, var(--below) calc(var(--down) * 34%), var(--raised))",
        ".scene-lean i.above": "var(--above)",
        ".scene-lean i.below": "var(--below)",
    },
    "/scene?phase=update": {".scene-move.above i": "var(--above)", ".scene-move.below i": "var(--below)"},
    "/story?s=3": {".story-bar .above": "var(--above)", ".story-bar .below": "var(--below)"},
    "/learn/credit": {
        ".glyph.above": "color-mix(in srgb, var(--above) calc(var(--strength) * 55%), var(--mix))",
        ".glyph.below": "color-mix(in srgb, var(--below) calc(var(--strength) * 55%), var(--mix))",
    },
    "/learn/advantage": {".bar .above": "var(--above)", ".bar .below": "var(--below)"},
}
"""Parts whose colour carries meaning, by page, with their background."""
COMPARE = """([selector, wanted]) => {
  const parts = [...document.querySelectorAll(selector)].filter((part) => part.offsetParent !== null);
  const colour = (part) => getComputedStyle(part).backgroundColor;
  const probe = document.createElement("i");
  const wrong = parts.filter((part) => {
    const plain = part.style.cssText;
    probe.style.cssText = `${plain}; position: absolute; background: ${wanted}; transition: none`;
    part.parentElement.append(probe);
    const [found, expected] = [colour(part), colour(probe)];
    probe.remove();
    return found !== expected;
  });
  return [parts.length, wrong.map((part) => `${part.outerHTML.slice(0, 120)} is ${colour(part)}`)];
}"""
SIZES = {"h1": "--text-xl", "h2": "--text-l", "body": "--text-m", ".small": "--text-s"}
LENSES = ("push", "ratio", "clip", "kl", "entropy", "gap", "probability")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runs = tmp_path_factory.mktemp("runs")
    make_episode_run(runs, "played", HOSTILE)
    make_run(runs, "diverged", metrics=lambda step: {"kl": step / 10})
    yield from serving(runs)


@pytest.fixture(scope="module")
def bare_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """As a new user finds it: the pictures show no runs of their own."""
    yield from serving(tmp_path_factory.mktemp("none"))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_the_docs_show_what_a_user_gets(chromium: Any, bare_lab: Lab, name: str, tmp_path: Path) -> None:
    """A picture that fails is kept in $GRPO_PICTURES, where that is set."""
    found = Path(os.environ.get("GRPO_PICTURES", tmp_path)) / f"lab-{name}.png"
    take(chromium.browser, bare_lab, name, found)
    share = differing(found, picture_of(name))
    assert share <= MOST_DIFFERING, (
        f"{share:.2%} of docs/images/lab-{name}.png differ from {found}; look at both: "
        f"if the new one is right, run python scripts/make_pictures.py lab-{name}"
    )


def test_the_comparison_notices_a_colour_and_a_shift(tmp_path: Path) -> None:
    """It would be no test otherwise."""
    import numpy as np
    from PIL import Image

    page = np.full((600, 600, 3), 255, dtype=np.uint8)
    page[100:160, 100:160] = (0x2F, 0x7F, 0xD0)
    other, moved, faint = page.copy(), np.roll(page, 12, axis=0), page.copy()
    other[100:160, 100:160] = (0xD9, 0x6B, 0x0B)
    faint[300, 300] = 0  # a dot
    files = {}
    for name, pixels in {"page": page, "other": other, "moved": moved, "faint": faint}.items():
        files[name] = tmp_path / f"{name}.png"
        Image.fromarray(pixels).save(files[name])
    assert differing(files["other"], files["page"]) == pytest.approx(100 / 10_000, rel=0.25)
    assert differing(files["moved"], files["page"]) > MOST_DIFFERING
    assert differing(files["faint"], files["page"]) == 0


@pytest.mark.parametrize("path", PARTS)
def test_coloured_parts_have_their_colours(chromium: Any, lab: Lab, path: str) -> None:
    visit = Visit(chromium.new_page(), lab)
    visit.page.emulate_media(reduced_motion="reduce")
    for theme in ("light", "dark"):
        visit.turn(theme, 1280, 900)
        visit.go(path)
        for selector, wanted in PARTS[path].items():
            visit.page.locator(selector).first.wait_for(state="attached")
            count, wrong = visit.page.evaluate(COMPARE, [selector, wanted])
            assert count > 0, selector
            assert wrong == [], f"{theme}: {selector} is not {wanted}"
    visit.page.close()


def test_every_lens_colours_tokens(chromium: Any, lab: Lab) -> None:
    visit = open_page(chromium, lab, f"{RUN}/tokens?step=5")
    for lens in LENSES:
        visit.go(f"{RUN}/tokens?step=5&lens={lens}")
        tokens = visit.page.locator(".lens-row .token")
        colours = tokens.evaluate_all("(all) => all.map((token) => getComputedStyle(token).backgroundColor)")
        if lens != "clip":  # the step may clip nothing
            assert len(set(colours)) > 1, lens
    visit.page.close()


def test_text_is_set_in_inter_in_the_sizes_of_the_scale(chromium: Any, lab: Lab) -> None:
    visit = open_page(chromium, lab, f"{RUN}/overview")
    family = visit.page.locator("body").evaluate("(body) => getComputedStyle(body).fontFamily")
    assert family.startswith("Inter,")
    loaded = visit.page.evaluate(
        "document.fonts.ready.then((all) => [...all].filter((f) => f.status === 'loaded').map((f) => f.family))"
    )
    assert "Inter" in loaded
    for selector, size in SIZES.items():
        found, wanted = visit.page.evaluate(
            """([selector, size]) => {
              const root = document.documentElement;
              const style = getComputedStyle(document.querySelector(selector));
              const rem = parseFloat(getComputedStyle(root).fontSize);
              return [parseFloat(style.fontSize), rem * parseFloat(getComputedStyle(root).getPropertyValue(size))];
            }""",
            [selector, size],
        )
        assert found == pytest.approx(wanted), selector
    figures = visit.page.locator(".num").first.evaluate("(one) => getComputedStyle(one).fontVariantNumeric")
    assert figures == "tabular-nums"
    visit.page.close()
