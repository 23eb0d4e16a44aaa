"""Draws docs/images/learning.svg from a recorded run: python scripts/make_picture.py RUN [--runs runs]

Accuracy on held-out problems with its 95% intervals, the share of worked answers, and their length, over the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from grpo.record.store import Run

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 58, 46
BLUE, ORANGE, GREY = "#2f7fd0", "#d96b0b", "#8a8a8a"
TITLE = "rewarded only for right answers, it learns to write out its work"
Points = Sequence[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "docs/images/learning.svg")
    arguments = parser.parse_args()
    with Run.open(arguments.runs, arguments.run, readonly=True) as run:
        arguments.into.write_text(picture(run))


def picture(run: Run) -> str:
    evals, summary = run.evals(), run.summary()
    steps = summary["steps"]
    longest = 5 * (1 + max(int(value) for _, value in run.series("length_mean")) // 5)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    worked = smooth(run.series("worked_share"))
    length = [(step, value / longest) for step, value in smooth(run.series("length_mean"))]
    accuracy = [(row["step"], row["accuracy"]) for row in evals]
    batch = f"{summary['prompts_per_step']} prompts × {summary['group_size']} completions a step"
    parts = [
        *(axis_line(x(0), x(steps), y(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)),
        *(
            text(x(step), HEIGHT - 18, str(step), anchor="middle")
            for step in range(0, steps + 1, max(1, steps // 60 * 10))
        ),
        text((x(0) + x(steps)) / 2, HEIGHT - 2, "GRPO steps", anchor="middle"),
        line([(x(a), y(b)) for a, b in length], GREY, width=2, dash="5 4"),
        line([(x(a), y(b)) for a, b in worked], ORANGE, width=2),
        line([(x(a), y(b)) for a, b in accuracy], BLUE, width=3),
        *(line([(x(r["step"]), y(r["low"])), (x(r["step"]), y(r["high"]))], BLUE, width=1.5) for r in evals),
        *(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{BLUE}"/>' for a, b in accuracy),
        *labels(
            x(steps) + 10,
            {
                f"right answers {accuracy[-1][1]:.0%}": (y(accuracy[-1][1]), BLUE),
                f"worked answers {worked[-1][1]:.0%}": (y(worked[-1][1]), ORANGE),
                f"length {length[-1][1] * longest:.0f} tokens": (y(length[-1][1]), GREY),
            },
        ),
        text(LEFT, 22, f"{summary['model']} on {summary['task']}: {TITLE}", size=16, weight="600"),
        text(LEFT, 42, f"{batch}, {summary['seconds']:.0f} s of training on the CPU, seed {summary['seed']}"),
    ]
    style = "text{font-family:system-ui,sans-serif;fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return "\n".join([opening, f"<style>{style}</style>", *parts, "</svg>\n"])


def smooth(points: Points, window: int = 5) -> list[tuple[float, float]]:
    """Mean over the last `window` steps; single batches are noisy."""
    values = [value for _, value in points]
    means = [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
    return [(step, mean) for (step, _), mean in zip(points, means, strict=True)]


def labels(left: float, wanted: dict[str, tuple[float, str]]) -> list[str]:
    """Labels at the ends of the lines, moved apart if they would overlap."""
    placed, last = [], -1e9
    for name, (height, colour) in sorted(wanted.items(), key=lambda item: item[1]):
        last = max(height, last + 18)
        style = f'font-size="13" style="fill:{colour}"'
        placed.append(f'<text x="{left:.0f}" y="{last + 5:.1f}" {style}>{escape(name)}</text>')
    return placed


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


if __name__ == "__main__":
    main()
