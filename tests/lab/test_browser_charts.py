"""Charts, comparison and list of runs in a browser: what is read out, saved and drawn are the record's numbers."""

from __future__ import annotations

import base64
import csv
import json
import math
import re
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helpers.records import make_run
from helpers.visit import TOKEN, Lab, Visit, faults, open_page, serving

pytestmark = pytest.mark.browser

STEPS = 40


def reward(step: int) -> float:
    return 0.3 + 0.01 * step + 0.1 * (-1) ** step


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    runs = tmp_path_factory.mktemp("runs")
    for seed, shift in ((1, 0.0), (2, 0.02)):

        def measured(step: int, shift: float = shift) -> dict[str, float]:
            return {"reward_mean": reward(step) + shift, "tokens": 12000.0, "kl": math.exp(step / 10)}

        make_run(runs, f"seed-{seed}", seed=seed, steps=STEPS, metrics=measured)
    make_run(runs, "hot", steps=3, lr=1e-3, evals=())
    yield from serving(runs)


@pytest.fixture
def visit(chromium: Any, lab: Lab) -> Iterator[Visit]:
    visit = open_page(chromium, lab, "/runs/seed-1")
    yield visit
    visit.page.close()


def ask(lab: Lab, path: str) -> Any:
    request = urllib.request.Request(lab.origin + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ticks(figure: Any) -> list[float]:
    """Numbers on the x axis."""
    texts = figure.locator("svg g[font-variant=tabular-nums]").last.locator("text").all_text_contents()
    return [float(text.replace(",", "")) for text in texts]


def test_a_chart_is_read_zoomed_smoothed_and_saved(visit: Visit) -> None:
    page = visit.page
    figure = page.locator(".metric", has=page.get_by_role("heading", name="reward mean")).locator("figure")
    frame, readout = figure.locator(".chart-frame"), figure.locator(".readout")
    assert figure.locator("svg text", has_text="the task's reward").count() == 1

    # Arrow keys read one step after another; the pointer finds the nearest.
    frame.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert readout.inner_text().split("\n") == ["step 2", f"reward mean {reward(2):.4f}"]
    page.keyboard.press("End")
    assert figure.locator("[aria-live]").inner_text() == f"step 39; reward mean {reward(39):.4f}"
    box = frame.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    step = int(re.match(r"step (\d+)", readout.inner_text())[1])
    assert 15 <= step <= 25
    assert readout.inner_text().endswith(f"{reward(step):.4f}")

    # A drag zooms to the steps under it, on ticks of whole steps; Escape shows all.
    all_ticks = ticks(figure)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 30, box["y"] + 60, steps=3)
    page.mouse.up()
    figure.get_by_role("button", name="Reset zoom").wait_for()
    figure.locator("svg text", has_text=re.compile("^30$")).wait_for(state="detached")
    zoomed = ticks(figure)
    assert step - 2 <= min(zoomed)
    assert max(zoomed) <= step + 9
    assert all(value == int(value) for value in all_ticks + zoomed)
    frame.focus()
    page.keyboard.press("Escape")
    figure.locator("svg text", has_text=re.compile("^30$")).wait_for()
    assert ticks(figure) == all_ticks

    # The same file as the answer of the server, to the last digit.
    with page.expect_download() as saved:
        figure.get_by_role("button", name="CSV").click()
    rows = list(csv.reader(Path(saved.value.path()).read_text().splitlines()))
    series = ask(visit.lab, "/api/runs/seed-1/series?names=reward_mean&points=240")["series"]["reward_mean"]
    assert rows[0] == ["step", "mean", "lowest", "highest"]
    assert [[float(cell) for cell in row] for row in rows[1:]] == [
        list(row) for row in zip(*series.values(), strict=True)
    ]

    # The picture: twice the size of the chart and its title, in several colours.
    with page.expect_download() as saved:
        figure.get_by_role("button", name="PNG").click()
    width, height, colours = decoded(page, Path(saved.value.path()))
    assert (width, height) == (2 * round(box["width"]), 2 * (round(box["height"]) + 24))
    assert colours > 20

    # Smoothing: the recorded line stays, the mean is that of the formula; on a log axis an exponential is straight.
    visit.go("/runs/seed-1?smooth=0.8&log=1")
    frame.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expected = (0.8 * reward(0) + reward(1)) / 1.8
    assert readout.inner_text().split("\n") == [
        "step 1",
        f"reward mean {reward(1):.4f}",
        f"reward mean, smoothed {expected:.4f}",
    ]
    kl = page.locator(".metric", has=page.get_by_role("heading", name=re.compile("^kl")))
    drawn = kl.locator("svg g[stroke-opacity] > path[d]").first.get_attribute("d")
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+),([\d.]+)", drawn)]
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
    assert len(slopes) == STEPS - 1
    assert max(slopes) - min(slopes) < 0.02
    assert faults(visit) == []


def decoded(page: Any, file: Path) -> tuple[int, int, int]:
    """Width, height and number of colours of a picture."""
    data = base64.b64encode(file.read_bytes()).decode()
    return tuple(
        page.evaluate(
            """async (data) => {
          const image = Object.assign(new Image(), { src: `data:image/png;base64,${data}` });
          await image.decode();
          const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
          const brush = canvas.getContext("2d");
          brush.drawImage(image, 0, 0);
          const pixels = new Uint32Array(brush.getImageData(0, 0, image.width, image.height).data.buffer);
          return [image.width, image.height, new Set(pixels).size];
        }""",
            data,
        )
    )


def test_runs_are_compared_by_several_metrics(visit: Visit) -> None:
    visit.go("/compare?runs=seed-1,seed-2,~tiny-arithmetic&metrics=reward_mean,kl&by=tokens")
    page = visit.page
    assert page.locator(".metric h3").all_inner_texts()[1:] == ["reward mean?", "kl?"]
    figure = page.locator(".metric").nth(1).locator("figure")
    figure.locator(".chart-frame").focus()
    page.keyboard.press("End")
    [head, *rows] = figure.locator(".readout").inner_text().split("\n")
    assert head == f"tokens {12000 * STEPS:,}"
    [row] = [row for row in rows if row.startswith("seed-1 and 1 more seed ")]
    mean, spread = reward(STEPS - 1) + 0.01, 0.02 / 2**0.5
    assert row.removeprefix("seed-1 and 1 more seed ") == f"{mean:.4f} ({mean - spread:.4f} to {mean + spread:.4f})"
    page.locator(".metric-picker summary").click()
    page.get_by_role("checkbox", name="entropy", exact=True).check()
    page.get_by_role("heading", name="entropy").wait_for()
    assert page.url.endswith("metrics=reward_mean%2Ckl%2Centropy&by=tokens")
    assert faults(visit) == []


def test_runs_are_filtered_sorted_and_annotated(visit: Visit) -> None:
    visit.go("/runs")
    page = visit.page
    names = page.locator("[aria-label='Your runs'] .run-name")
    page.get_by_role("button", name="Steps").click()
    page.wait_for_url("**sort=steps")
    assert names.all_inner_texts()[0] == "hot"
    page.get_by_role("button", name="Steps").click()
    page.wait_for_url("**sort=-steps")
    assert names.all_inner_texts()[-1] == "hot"
    page.get_by_role("button", name="Add a note of hot").click()
    page.get_by_label("Tags").fill("sweep, lr")
    page.get_by_label("Note", exact=True).fill("<img src=x onerror='window.hacked = 1'>")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("group", name="Tags").get_by_role("button", name="sweep").click()
    page.wait_for_url("**tag=sweep")
    assert names.all_inner_texts() == ["hot"]
    page.reload()
    visit.settle()
    assert names.all_inner_texts() == ["hot"]
    assert page.locator(".notes .note").inner_text() == "<img src=x onerror='window.hacked = 1'>"
    page.get_by_role("button", name="sweep").first.click()
    page.get_by_role("searchbox").fill("seed TINY")
    page.wait_for_url("**q=seed+TINY**")
    assert sorted(names.all_inner_texts()) == ["seed-1", "seed-2"]
    assert page.evaluate("window.hacked") is None
    assert json.loads((visit.lab.runs / "hot/notes.json").read_text())["tags"] == ["sweep", "lr"]
    visit.go("/runs/hot")
    assert page.locator(".run-head .tag").all_inner_texts() == ["sweep", "lr"]
    assert faults(visit) == []
