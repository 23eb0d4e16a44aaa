"""A visit to the lab with a browser that notices everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\x1b[31mred\u202egnp.exe\u200f"


class Lab:
    def __init__(self, runs: Path, port: int):
        self.runs, self.port, self.origin = runs, port, f"http://127.0.0.1:{port}"


class Visit:
    """A page, and all that it complained of or asked for."""

    def __init__(self, page: Any, lab: Lab):
        self.page, self.lab = page, lab
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

    def go(self, path: str) -> None:
        self.page.goto(self.lab.origin + path)
        self.settle()

    def settle(self) -> None:
        """Until nothing loads any more, and every chart is drawn."""
        self.page.locator("h1").first.wait_for()
        waiting = ".loading, [aria-busy=true], .chart-frame:not(:has(svg))"
        self.page.locator(waiting).first.wait_for(state="detached")

    def violations(self) -> list[str]:
        found = self.page.evaluate("async () => (await axe.run()).violations")
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def number(self, name: str) -> float:
        text = self.page.locator(f"[data-number={name}]").first.inner_text()
        value = float(text.replace("−", "-").replace("+", "").replace(",", "").rstrip("%"))
        return value / 100 if text.endswith("%") else value
