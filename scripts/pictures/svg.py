"""Parts of an SVG picture that is readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

BLUE, ORANGE, GREY, TEAL = "#2f7fd0", "#d96b0b", "#8a8a8a", "#1d9a8a"
Points = Sequence[tuple[float, float]]


def document(width: float, height: float, parts: Sequence[str]) -> str:
    style = "text{font-family:system-ui,sans-serif;fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return "\n".join([opening, f"<style>{style}</style>", *parts, "</svg>\n"])


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def axis_line(left: float, right: float, height: float, label: str) -> str:
    rule = f'<line x1="{left:.0f}" x2="{right:.0f}" y1="{height:.1f}" y2="{height:.1f}" stroke="{GREY}" opacity=".25"/>'
    return rule + text(left - 8, height + 4, label, anchor="end")


def line(points: Points, colour: str, *, width: float, dash: str = "") -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
