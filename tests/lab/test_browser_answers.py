"""Chapters' answers in JavaScript equal the server's, for random settings."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from grpo.lab.answer import Answer
from grpo.lab.chapters import answer
from grpo.lab.site.questions import questions
from helpers.chapter_questions import ASKED, asked
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


def chunk(urls: list[str]) -> str:
    """Recorded answers as a static site has them."""
    found = {}
    for url in urls:
        place = urlsplit(url)
        slug, key = place.path.split("/")[3:]
        settings = dict(parse_qsl(place.query))
        parameters = "&".join(sorted(f"{name}={value}" for name, value in settings.items()))
        found[f"{place.path}?{parameters}" if parameters else place.path] = answer(slug, key, settings)
    return base64.b64encode(gzip.compress(Answer.text(found).encode())).decode()


def difference(found: Any, expected: Any, path: str = "") -> str:
    """The first place where two answers differ by more than 1e-9 of the largest number beside it."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        numbers = [abs(value) for value in expected.values() if isinstance(value, float)]
        each = [
            _apart(found[name], value, max(numbers, default=0), f"{path}.{name}") for name, value in expected.items()
        ]
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        numbers = [abs(value) for value in expected if isinstance(value, float)]
        pairs = enumerate(zip(found, expected, strict=True))
        each = [_apart(a, b, max(numbers, default=0), f"{path}[{place}]") for place, (a, b) in pairs]
    else:
        each = [_apart(found, expected, 0.0, path)]
    return next(filter(None, each), "")


def _apart(found: Any, expected: Any, largest: float, path: str) -> str:
    if isinstance(expected, dict | list) and type(found) is type(expected):
        return difference(found, expected, path)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (found, expected))
    if numbers and math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9 * largest + 1e-14):
        return ""
    return (
        ""
        if found == expected and isinstance(found, bool) == isinstance(expected, bool)
        else f"{path}: {found!r}, {expected!r}"
    )


def test_answers_equal_the_servers(chromium: Any, classroom: Lab) -> None:
    cases = list(asked(times=6))
    keys = [f"/api/chapters/{name}" for name in ASKED]
    needed = [url for url in questions() if url.partition("?")[0] in keys or url.endswith("baselines?step=5")]
    visit = open_page(chromium, classroom, "/learn")
    given = [chunk(needed), [[slug, key, urlencode(settings)] for slug, key, settings in cases]]
    text, computed = visit.page.evaluate(COMPUTE, given)
    assert set(computed) == set(ASKED), "every answer in JavaScript is compared"
    wrong = []
    for found, (slug, key, settings) in zip(json.loads(text), cases, strict=True):
        expected = json.loads(Answer.text(answer(slug, key, settings)))
        if apart := difference(found, expected):
            wrong.append(f"{slug}/{key} {settings}: {apart}"[:600])
    assert not wrong, "\n".join([str(len(wrong)), *wrong[:25]])
    assert visit.complaints == []
    visit.page.close()
