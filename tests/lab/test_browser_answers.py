"""Chapters' answers in JavaScript equal the server's, for random settings."""

from __future__ import annotations

import base64
import gzip
import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from grpo.lab.answer import Answer
from grpo.lab.chapters import CHAPTERS, answer, chapter
from grpo.lab.site.questions import questions
from grpo.lab.site.record import key
from helpers.chapter_questions import ASKED, NANO, asked, typed_answers
from helpers.visit import Lab, open_page

pytestmark = pytest.mark.browser

COMPUTE = """async ([chunk, asked]) => {
  window.grpoIndex = { "/api": "recorded" };
  window.grpoChunks = { recorded: chunk };
  const { ANSWERS } = await import("/static/js/offline/chapters.js");
  const found = [];
  for (const [slug, key, query] of asked) {
    try {
      found.push(await ANSWERS[slug][key](new URLSearchParams(query)));
    } catch (error) {
      found.push(String(error.stack));
    }
  }
  const names = Object.entries(ANSWERS).flatMap(([slug, keys]) => Object.keys(keys).map((key) => `${slug}/${key}`));
  return [JSON.stringify(found), names];
}"""

FIRST, SECOND = "prompt=37%2B85%2B46%3D&seed=1", "prompt=58%2B27%2B94%3D&seed=2"
RECORDED = (
    "why/heldout",
    "group/baselines?step=5",
    f"credit/tokens?{FIRST}&sample=3",
    f"credit/tokens?{SECOND}",
    f"credit/steps?{FIRST}",
    "credit/presets?prompt=66%2B39%2B71%3D&seed=1",
    "turns/game?hidden=4&seed=2&sample=5",
)
"""Recorded answers that the questions of this test need, in addition to those of the same name."""


def chunk(urls: list[str]) -> str:
    """Recorded answers as a static site has them, with all digits."""
    keys, answers = {}, []
    for url in urls:
        place = urlsplit(url)
        slug, name = place.path.split("/")[3:]
        keys[key(url)] = len(answers)
        answers.append(answer(slug, name, dict(parse_qsl(place.query))))
    return base64.b64encode(gzip.compress(Answer.text({"keys": keys, "answers": answers}).encode())).decode()


def by_the_docs() -> dict[str, set[str]]:
    """The answers that docs/lab.md lists as computed in the page, and as recorded."""
    found: dict[str, set[str]] = {"computed": set(), "recorded": set()}
    text = (Path(__file__).parents[2] / "docs/lab.md").read_text()
    for line in text.partition("## Chapters without a server")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in CHAPTERS:
            for kind, cell in zip(("computed", "computed", "recorded"), cells[1:], strict=True):
                found[kind] |= {f"{cells[0]}/{name}" for name in cell.split(", ") if name}
    return found


def difference(found: Any, expected: Any, within: float, path: str = "") -> str:
    """The first place where two answers differ by more than this share of the largest number beside it."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        return _first({f"{path}.{name}": (found[name], value) for name, value in expected.items()}, within)
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        return _first({f"{path}[{i}]": pair for i, pair in enumerate(zip(found, expected, strict=True))}, within)
    return f"{path}: {found!r}, {expected!r}"


def _first(pairs: dict[str, tuple[Any, Any]], within: float) -> str:
    largest = max((abs(b) for _, b in pairs.values() if isinstance(b, float)), default=0.0)
    for path, (found, expected) in pairs.items():
        if isinstance(expected, dict | list):
            if apart := difference(found, expected, within, path):
                return apart
        elif isinstance(expected, int | float) and isinstance(found, int | float):
            if not math.isclose(found, expected, rel_tol=within, abs_tol=within * largest + 1e-14):
                return f"{path}: {found!r}, {expected!r}"
        elif found != expected:
            return f"{path}: {found!r}, {expected!r}"
    return ""


def test_answers_equal_the_servers(chromium: Any, classroom: Lab) -> None:
    cases = [*asked(times=6), *typed_answers(times=40), *NANO]
    names = {f"/api/chapters/{name}" for name in ASKED}
    needed = [url for url in questions() if url.partition("?")[0] in names]
    needed += [f"/api/chapters/{name}" for name in RECORDED]
    assert set(needed) <= set(questions())
    visit = open_page(chromium, classroom, "/learn")
    given = [chunk(needed), [[slug, name, urlencode(settings)] for slug, name, settings in cases]]
    text, computed = visit.page.evaluate(COMPUTE, given)
    assert set(computed) == {*ASKED, *(f"{slug}/{name}" for slug, name, _ in NANO)}, (
        "every answer in JavaScript is compared"
    )
    recorded = {url.removeprefix("/api/chapters/").partition("?")[0] for url in questions()}
    served = {f"{slug}/{name}" for slug in CHAPTERS for name in chapter(slug).ANSWERS}
    documented = by_the_docs()
    assert {name for names in documented.values() for name in names} == served
    assert documented["computed"] <= set(computed)
    assert documented["recorded"] <= recorded
    wrong, left = [], 0
    for found, (slug, name, settings) in zip(json.loads(text), cases, strict=True):
        if found is None and name in ("score", "strategies"):  # a text for the checker in Python
            left += 1
            continue
        expected = json.loads(Answer.text(answer(slug, name, settings)))
        within = 2e-3 if (slug, name, settings) in NANO else 1e-9
        if apart := difference(found, expected, within):
            wrong.append(f"{slug}/{name} {settings}: {apart}"[:600])
    assert not wrong, "\n".join([str(len(wrong)), *wrong[:25]])
    assert left < 20, "most texts with plain numbers are checked in the page"
    assert visit.complaints == []
    visit.page.close()
