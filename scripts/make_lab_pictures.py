"""Takes docs/images/lab-*.png from the recordings of the lab: python scripts/make_lab_pictures.py [NAME ...]

Needs Chromium, as `make test-lab` does; uses the browser helper of the tests.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.visit import CHROMIUM, Lab, Visit, serving  # noqa: E402

RUN = "/runs/~tiny-arithmetic"
PICTURES = {
    "scene": ("/scene?phase=update&round=3", "light", 1280, 800, ""),
    "card": ("/play?say=1.8%3A111_2.8%3A111_3.8%3A111&round=3&step=card", "light", 1280, 690, ""),
    "groups": (f"{RUN}/groups?step=4&group=3", "light", 1280, 860, ""),
    "tokens": (f"{RUN}/tokens?step=5&sample=0&token=2", "light", 1280, 900, ""),
    "signal": (f"{RUN}/signal", "light", 1280, 860, ""),
    "whatif": (f"{RUN}/whatif?step=5&scale=none&aggregate=token", "light", 1280, 900, ""),
    "difficulty": (f"{RUN}/difficulty", "dark", 1280, 860, ""),
    "replay": (f"{RUN}/replay?step=10", "dark", 1280, 860, ""),
    "overview": (f"{RUN}/overview", "dark", 1280, 860, ""),
    "phone": (f"{RUN}/groups?step=4&group=3", "dark", 390, 844, ""),
    "learn": ("/learn", "light", 1000, 1100, ""),
    "advantage": ("/learn/advantage", "light", 1000, 800, "Build a group"),
    "loss": ("/learn/loss", "light", 1000, 850, "Every token gets a push"),
    "train": ("/learn/train", "light", 1000, 900, "PPO and GRPO, side by side"),
    "turns": ("/learn/turns?sample=3&turn=2", "light", 1000, 860, "A game of four guesses"),
}
"""Address, theme, width and height in points, and the heading at the top of the picture (empty: the page's top)."""
SHARPNESS = 1.25


def take(chromium: Any, lab: Lab, name: str) -> None:
    address, theme, width, height, heading = PICTURES[name]
    context = chromium.new_context(device_scale_factor=SHARPNESS)
    visit = Visit(context.new_page(), lab)
    visit.turn(theme, width, height)
    visit.go(address)
    if heading:
        top = visit.page.get_by_role("heading", name=heading, exact=True).bounding_box()["y"]
        visit.page.mouse.wheel(0, top - 24)
    visit.page.wait_for_timeout(500)  # until all fades have ended
    visit.page.screenshot(path=ROOT / f"docs/images/lab-{name}.png")
    context.close()


def main() -> None:
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as empty:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for lab in serving(Path(empty)):
            for name in sys.argv[1:] or PICTURES:
                take(chromium, lab, name)
        chromium.close()


if __name__ == "__main__":
    main()
