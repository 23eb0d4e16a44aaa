"""Pictures of the lab for the README and the docs. tests/lab/test_pictures.py takes them again and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from helpers.visit import Lab, Visit

IMAGES = Path(__file__).parents[2] / "docs/images"
RUN = "/runs/~tiny-arithmetic"
PICTURES = {
    "scene": ("/scene?phase=update&round=2", "light", 1280, 800, ""),
    "scene-phone": ("/scene?phase=push", "dark", 390, 844, ""),
    "card": ("/play?say=1.8%3A111_2.8%3A111_3.8%3A111&round=3&step=card", "light", 1280, 690, ""),
    "groups": (f"{RUN}/groups?step=4&group=3", "light", 1280, 860, ""),
    "tokens": (f"{RUN}/tokens?step=5&sample=0&token=2", "light", 1280, 900, ""),
    "signal": (f"{RUN}/signal", "light", 1280, 860, ""),
    "whatif": (f"{RUN}/whatif?step=5&scale=none&aggregate=token", "light", 1280, 900, ""),
    "difficulty": (f"{RUN}/difficulty", "dark", 1280, 860, ""),
    "replay": (f"{RUN}/replay?step=10", "dark", 1280, 860, ""),
    "overview": (f"{RUN}/overview", "dark", 1280, 860, ""),
    "phone": (f"{RUN}/groups?step=4&group=3", "dark", 390, 844, ""),
    "tokens-phone": (f"{RUN}/tokens?step=5&sample=0&token=2", "light", 390, 844, ""),
    "learn": ("/learn", "light", 1000, 1100, ""),
    "advantage": ("/learn/advantage", "light", 1000, 800, "Build a group"),
    "loss": ("/learn/loss", "light", 1000, 850, "Every token gets a push"),
    "train": ("/learn/train", "light", 1000, 900, "PPO and GRPO, side by side"),
    "turns": ("/learn/turns?sample=3&turn=2", "light", 1000, 860, "A game of four guesses"),
}
"""Address, theme, width and height in points, and the heading at the top of the picture (empty: the page's top)."""
SHARPNESS = 1.25
BLOCK = 6
"""Pictures are compared in squares of this many pixels: edges of letters may differ, layout and colours may not."""
TOLERANCE = 10
"""Largest difference of a square's mean red, green or blue, of 255, that counts as equal."""


def picture_of(name: str) -> Path:
    return IMAGES / f"lab-{name}.png"


def take(browser: Any, lab: Lab, name: str, file: Path) -> None:
    """Takes a picture of a page that stands still."""
    address, theme, width, height, heading = PICTURES[name]
    still = {"reduced_motion": "reduce", "locale": "en", "timezone_id": "UTC"}
    context = browser.new_context(device_scale_factor=SHARPNESS, **still)
    context.set_default_timeout(60_000)
    visit = Visit(context.new_page(), lab)
    visit.turn(theme, width, height)
    visit.go(address)
    visit.page.evaluate("document.fonts.ready.then(() => true)")
    if heading:
        top = visit.page.get_by_role("heading", name=heading, exact=True).bounding_box()["y"]
        visit.page.mouse.wheel(0, top - 24)
        visit.page.wait_for_timeout(300)  # until it has scrolled
        visit.settle()
    visit.page.screenshot(path=file, animations="disabled")
    context.close()


def differing(found: Path, wanted: Path) -> float:
    """The share of squares that differ; 1 where the pictures have another size."""
    found_HWC, wanted_HWC = (_squares(file) for file in (found, wanted))
    if found_HWC.shape != wanted_HWC.shape:
        return 1.0
    return float((np.abs(found_HWC - wanted_HWC).max(axis=2) > TOLERANCE).mean())


def _squares(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        pixels_HWC = np.asarray(image.convert("RGB"), dtype=float)
    rows, columns = pixels_HWC.shape[0] // BLOCK, pixels_HWC.shape[1] // BLOCK
    whole = pixels_HWC[: rows * BLOCK, : columns * BLOCK]
    return np.asarray(whole.reshape(rows, BLOCK, columns, BLOCK, 3).mean(axis=(1, 3)))
