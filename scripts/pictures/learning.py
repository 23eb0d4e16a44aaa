"""docs/images/learning.svg: one run of `grpo train`. Accuracy on held-out problems with its 95% intervals, the share of
worked answers, and their length, over the steps. docs/images/learning.json holds the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from pictures.svg import BLUE, GREY, ORANGE, Points, axis_line, document, line, text

from grpo.record.store import Run

DATA = Path(__file__).parents[2] / "docs/images/learning.json"
WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 58, 46
TITLE = "rewarded only for right answers, it learns to write out its work"


def keep(folder: Path) -> None:
    """Writes the numbers of a finished run to learning.json."""
    with Run.open(folder.parent, folder.name, readonly=True) as run:
        summary = run.summary()
        kept = {name: summary[name] for name in ("model", "task", "seed", "steps", "prompts_per_step", "group_size")}
        kept["evals"] = [
            {name: round(row[name], 6) for name in ("step", "accuracy", "low", "high", "worked_share")}
            for row in run.evals()
        ]
        for name in ("worked_share", "length_mean"):
            kept[name] = [round(value, 6) for _, value in run.series(name)]
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read() -> dict[str, Any]:
    """The numbers of the run that is drawn."""
    found: dict[str, Any] = json.loads(DATA.read_text())
    return found


def picture() -> str:
    run = read()
    evals, steps = run["evals"], run["steps"]
    longest = 5 * (1 + int(max(run["length_mean"])) // 5)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    worked = smooth(run["worked_share"])
    length = [(step, value / longest) for step, value in smooth(run["length_mean"])]
    accuracy = [(row["step"], row["accuracy"]) for row in evals]
    batch = f"{run['prompts_per_step']} prompts × {run['group_size']} completions a step"
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
        text(LEFT, 22, f"{run['model']} on {run['task']}: {TITLE}", size=16, weight="600"),
        text(LEFT, 42, f"grpo train: {batch}, seed {run['seed']}"),
    ]
    return document(WIDTH, HEIGHT, parts)


def smooth(values: list[float], window: int = 5) -> Points:
    """Mean over the last `window` steps; single batches are noisy. Step n samples from the weights after n updates."""
    recent = [values[max(0, step + 1 - window) : step + 1] for step in range(len(values))]
    return [(step, sum(some) / len(some)) for step, some in enumerate(recent)]


def labels(left: float, wanted: dict[str, tuple[float, str]]) -> list[str]:
    """Labels at the ends of the lines, moved apart if they would overlap."""
    placed, last = [], -1e9
    for name, (height, colour) in sorted(wanted.items(), key=lambda item: item[1]):
        last = max(height, last + 18)
        style = f'font-size="13" style="fill:{colour}"'
        placed.append(f'<text x="{left:.0f}" y="{last + 5:.1f}" {style}>{escape(name)}</text>')
    return placed
