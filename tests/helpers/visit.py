"""A visit to the lab with a browser that notices everything. The fixtures for it are in conftest.py."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from grpo.lab.connection import listen, web_server
from grpo.lab.server import make_app

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\x1b[31mred\u202egnp.exe\u200f"

CHROMIUM = os.environ.get("GRPO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
TOKEN = "of-the-tests"
AXE = Path(__file__).parents[1] / "lab/vendor/axe-core/axe.min.js"
SIDES = [("light", 1280, 900), ("dark", 390, 844)]
"""Colours depend on the theme alone, and layout on the width alone."""

TEXT_OF = """(selector) => [...document.querySelectorAll(selector)].map((part) => {
  const copy = part.cloneNode(true);
  const other = "svg, .chart button, .chart details, .untrusted, .katex, .visually-hidden, [role=tooltip]";
  copy.querySelectorAll(other).forEach((one) => one.remove());
  const walk = document.createTreeWalker(copy, NodeFilter.SHOW_TEXT), texts = [];
  while (walk.nextNode()) texts.push(walk.currentNode.textContent);
  return texts.join(" ");
}).join(" ")"""
"""All text of these parts, in closed parts too; no charts (but their legends), formulas and completions."""

STYLED = """() => Promise.all([...document.querySelectorAll("link[rel=stylesheet]")].filter((one) => !one.sheet).map(
  (one) => new Promise((done) => ["load", "error"].forEach((event) => one.addEventListener(event, done)))))"""
STILL = """() => Promise.allSettled(document.getAnimations()
  .filter((one) => one.playState === "running" && one.effect.getComputedTiming().endTime < 5000)
  .map((one) => one.finished))"""

INCOMPLETE_CHARTS = """async (least) => {
  const wrong = [];
  for (const frame of document.querySelectorAll(".chart-frame")) {
    const [label, figure] = [frame.getAttribute("aria-label"), frame.closest(".chart")];
    if (!frame.getClientRects().length || frame.clientHeight < least) continue;
    frame.focus({ preventScroll: true });
    for (let i = 0; i < 60 && !figure.querySelector(".readout"); i++) { // a chart may be drawn once more
      frame.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
      await new Promise(requestAnimationFrame);
    }
    if (!/\\d/.test(figure.querySelector(".readout")?.innerText)) wrong.push(`no readout: ${label}`);
    const tools = [...figure.querySelectorAll(".chart-tools button")].map((one) => one.firstChild.textContent);
    if (!["CSV", "PNG"].every((name) => tools.includes(name))) wrong.push(`no CSV or PNG: ${label}`);
    const { left, right, top } = frame.querySelector("svg").getBoundingClientRect();
    const texts = [...frame.querySelectorAll("svg text")].map((one) => [one.textContent, one.getBoundingClientRect()])
      .filter(([, box]) => box.width);
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
      Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    texts.forEach(([text, box], place) => {
      if (box.left < left - 1 || box.right > right + 1) wrong.push(`"${text}" is cut off: ${label}`);
      for (const [other] of texts.slice(place + 1).filter(([, its]) => over(box, its)))
        wrong.push(`"${text}" over "${other}": ${label}`);
    });
    const titled = texts.some(([text, box]) => box.top < top + 24 && /[a-z]/i.test(text)) ||
      frame.querySelector('svg text[transform*="rotate(-90"]');
    if (!titled && !/^(Memory |Accuracy before|\\d+ of \\d+ held-out)/.test(label)) wrong.push(`no y title: ${label}`);
    frame.blur();
  }
  return wrong;
}"""
"""Charts on the page that cannot be read by keyboard or saved, lack a title of y (but for those whose rows are named),
or whose texts are cut off or overlap. Lower ones are sparklines."""
SPARKLINE = 100


class Lab:
    def __init__(self, runs: Path, port: int):
        self.runs, self.port, self.origin = runs, port, f"http://127.0.0.1:{port}"


class Visit:
    """A page, and all that it complained of or asked for."""

    def __init__(self, page: Any, lab: Lab):
        self.page, self.lab = page, lab
        self.known = False
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._requested)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.lab.origin, "data:")):
            self.elsewhere.append(request.url)

    def turn(self, theme: str, width: int, height: int) -> None:
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size({"width": width, "height": height})

    def go(self, path: str) -> None:
        """The first visit has the token in its address."""
        token = "" if self.known else f"{'&' if '?' in path else '?'}token={TOKEN}"
        self.known = True
        self.page.goto(self.lab.origin + path + token)
        self.settle()

    def settle(self) -> None:
        """Until nothing loads any more, every style sheet applies, and every chart and formula is drawn."""
        self.page.locator("h1").first.wait_for()
        waiting = ".loading, [aria-busy=true], .chart-frame:not(:has(svg)), .tex:empty, .tex-block:empty"
        self.page.locator(waiting).first.wait_for(state="detached")
        self.page.evaluate(STYLED)  # a view asks for its own when it is shown

    def violations(self) -> list[str]:
        return self._violations("")

    def _violations(self, options: str) -> list[str]:
        """Once nothing moves: what fades in has too little contrast."""
        self.page.evaluate(STILL)
        found = self.page.evaluate(f"async () => (await axe.run({options})).violations")
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def incomplete_charts(self) -> list[str]:
        return self.page.evaluate(INCOMPLETE_CHARTS, SPARKLINE)

    def await_number(self, name: str, text: str) -> None:
        """Until the page shows it. (A function to poll for would be a string to evaluate, which the page's policy
        forbids.)"""
        self.page.locator(f'[data-number="{name}"]:text-is("{text}")').first.wait_for()

    def words(self, selector: str) -> list[str]:
        """The words that a reader finds there."""
        return re.findall(r"[^\W\d_][\w’'-]*", self.page.evaluate(TEXT_OF, selector))

    def number(self, name: str) -> float:
        text = self.page.locator(f"[data-number={name}]").first.inner_text()
        value = float(text.replace("−", "-").replace("+", "").replace(",", "").rstrip("%"))
        return value / 100 if text.endswith("%") else value


def serving(runs: Path) -> Generator[Lab, None, None]:
    listener = listen("127.0.0.1", 0)
    server = web_server(make_app(runs, token=TOKEN))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield Lab(runs, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


def open_page(chromium: Any, lab: Lab, path: str) -> Visit:
    """A page, loaded and settled, on a light desktop; to be closed with `visit.page.close()`."""
    visit = Visit(chromium.new_page(), lab)
    visit.turn(*SIDES[0])
    visit.go(path)
    return visit


def faults(visit: Visit) -> list[str]:
    """All that is wrong with the page as it stands, light and dark, wide and narrow."""
    found = []
    for theme, width, height in SIDES:
        visit.turn(theme, width, height)
        visit.settle()
        found += [f"{theme} {width}: {violation}" for violation in visit.violations()]
        overflow = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if overflow > 0:
            found.append(f"{theme} {width}: the page is {overflow} pixels wider than the screen")
    visit.turn(*SIDES[0])
    visit.settle()
    broken = visit.page.locator(".failed, .katex-error").all_inner_texts()
    return found + broken + visit.incomplete_charts() + visit.complaints + visit.elsewhere
