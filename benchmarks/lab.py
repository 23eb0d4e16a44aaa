"""Response times of the lab on a long run: 10,000 steps of 128 completions, recorded by this script.

    python benchmarks/lab.py                 all figures; the record (about 0.5 GB) is reused next time
    python benchmarks/lab.py --steps 1000    a shorter run

API: the median time of several responses over HTTP. Browser (headless Chromium): time from opening a page to the first
paint, and until everything is drawn. Scrolling: frame times of the list of completions, and of a completion with 4,000
tokens.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from playwright.sync_api import sync_playwright

from grpo.config import Config
from grpo.config.schema import as_dict
from grpo.core import group_advantages
from grpo.lab.connection import listen, web_server
from grpo.lab.server import make_app
from grpo.record.store import Run
from grpo.types import Completion, Group, Problem, Trace

PROMPTS, SIZE, LONG = 16, 8, 4000
FOLDER = Path(tempfile.gettempdir()) / "grpo-lab-benchmark"
REQUESTS = {
    "list of runs": "/api/runs",
    "overview": "/api/runs/long",
    "24 metrics, 240 points": "/api/runs/long/series?points=240",
    "one step": "/api/runs/long/steps/{middle}",
    "one group": "/api/runs/long/steps/{middle}/groups/3",
    "tokens of a group": "/api/runs/long/steps/{middle}/groups/0/tokens/0",
    "one completion of 4,000 tokens": "/api/runs/long/steps/{last}/groups/0/tokens/0",
    "a token's loss": "/api/runs/long/steps/{last}/groups/0/tokens/0/2000",
    "what if": "/api/runs/long/steps/{middle}/whatif?scale=none",
    "signal budget": "/api/runs/long/signal?points=240",
    "difficulty": "/api/runs/long/difficulty?points=120",
    "timeline": "/api/runs/long/timeline?points=160",
    "search, common": "/api/runs/long/completions?text=answer",
    "search, no match": "/api/runs/long/completions?text=zebra",
    "findings": "/api/runs/long/findings",
}
VIEWS = ("overview", "groups", "tokens", "signal", "difficulty", "completions", "whatif", "replay", "time", "findings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the recorded run")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the recorded runs")
    arguments = parser.parse_args()
    folder = arguments.folder / str(arguments.steps)
    if not (folder / "long/run.db").exists():
        make_record(folder, arguments.steps)
    size = (folder / "long/run.db").stat().st_size
    print(f"{arguments.steps:,} steps, {arguments.steps * PROMPTS * SIZE:,} completions, {size / 1e6:,.0f} MB")
    origin = serve(folder)
    numbers = {"middle": arguments.steps // 2, "last": arguments.steps - 1}
    for name, path in REQUESTS.items():
        first, later = response_times(origin + path.format(**numbers))
        print(f"API      {name:32} {1000 * later:8.1f} ms   first {1000 * first:8.1f} ms")
    measure_browser(origin, arguments.steps)


def make_record(folder: Path, steps: int) -> None:
    """Records a run with generated texts and metrics. Every tenth step stores the tokens of one group. So does the last
    step, which has a completion of 4,000 tokens."""
    shutil.rmtree(folder, ignore_errors=True)
    config = replace(Config(model="tiny", task="arithmetic", steps=steps), run="long")
    rng = np.random.default_rng(1)
    with Run.create(folder, "long", kind="grpo", config=as_dict(config)) as run:
        db: sqlite3.Connection = run._db
        db.execute("PRAGMA synchronous = OFF")
        for step in range(steps):
            groups = [make_group(rng, step, index, steps) for index in range(PROMPTS)]
            run.record(step, groups, make_metrics(rng, step, steps), {"rollout": 0.2, "reward": 0.01, "update": 0.6},
                       token_groups=1 if step % 10 == 0 or step == steps - 1 else 0)  # fmt: skip
            if step % 500 == 0:
                row = {"accuracy": step / steps, "low": step / steps, "high": min(1.0, step / steps + 0.05)}
                run.record_eval(step, row, [make_group(rng, step, index, steps, size=1) for index in range(200)])
        run.set_status("finished")


def make_group(rng: np.random.Generator, step: int, index: int, steps: int, size: int = SIZE) -> Group:
    rewards = (rng.random(size) < 0.2 + 0.7 * step / steps).astype(float)
    rewards[0] = 0.0  # so that the group has signal, and its tokens are stored
    [advantages] = group_advantages(torch.tensor(rewards)[None]).tolist()
    length = LONG if step == steps - 1 and index == 0 else 24

    def completion(sample: int) -> Completion:
        tokens = rng.integers(0, 12, length)
        logp = -rng.random(length).astype(np.float32)
        return Completion(
            text=f"answer {step} {index} {sample}: " + "1234567890, " * (length // 12),
            tokens=tokens,
            logprobs=logp,
            finish="stop",
            parts={"correct": rewards[sample]},
            reward=rewards[sample],
            correct=rewards[sample] == 1.0,
            traits={"worked": 1.0},
            ref_logprobs=logp - 0.01,
            advantages=np.full(length, advantages[sample], np.float32),
            trace=Trace(logp + 0.02, -logp, float(PROMPTS * SIZE)),
        )

    problem = Problem(f"train/{step}/{index}", f"{step}+{index}=", str(step + index))
    return Group(problem, np.array([1]), tuple(completion(sample) for sample in range(size)), step)


def make_metrics(rng: np.random.Generator, step: int, steps: int) -> dict[str, float]:
    names = "reward_mean reward_std accuracy advantage_std zero_signal_groups gradient_tokens length_mean length_max truncated loss kl entropy clip_low clip_high ratio_min ratio_max sampler_gap grad_norm lr updates tokens tokens_per_second unscored skipped_updates"  # noqa: E501
    noise = rng.random(24)
    return {name: float(value * (1 + step / steps)) for name, value in zip(names.split(), noise, strict=True)} | {
        "skipped_updates": 0.0
    }


def serve(folder: Path) -> str:
    listener = listen("127.0.0.1", 0)
    server = web_server(make_app(folder))
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def response_times(url: str, count: int = 7) -> tuple[float, float]:
    """Seconds of the first response, and the median of the others."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        with urllib.request.urlopen(url) as response:
            response.read()
        times.append(time.perf_counter() - begun)
    return times[0], statistics.median(times[1:])


FRAMES = """async (selector) => {
  const box = document.querySelector(selector), times = [];
  let last = performance.now();
  for (let frame = 0; frame < 120; frame++) {
    box.scrollTop += 300;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return [times[60], times[114], times[119]];
}"""


def measure_browser(origin: str, steps: int) -> None:
    """Prints the drawing times of every view, and frame times while scrolling."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for view in VIEWS:
            begun = time.perf_counter()
            page.goto(f"{origin}/runs/long/{view}")
            page.locator("h1").wait_for()
            page.locator(".loading, [aria-busy=true], .chart-frame:not(:has(svg))").first.wait_for(state="detached")
            drawn = time.perf_counter() - begun
            [paint] = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
            )
            print(f"browser  {view:32} {paint:8.0f} ms to first paint, {1000 * drawn:6.0f} ms until all is drawn")
        scrolled = {
            "list of completions": ("completions", ".virtual"),
            "4,000 tokens": (f"tokens?step={steps - 1}", ".tokens"),
        }
        for name, (view, selector) in scrolled.items():
            page.goto(f"{origin}/runs/long/{view}")
            page.locator(selector).first.wait_for()
            middle, most, longest = page.evaluate(FRAMES, selector)
            print(f"scroll   {name:32} {middle:8.1f} ms a frame, 95% below {most:.1f} ms, longest {longest:.1f} ms")
        browser.close()


if __name__ == "__main__":
    main()
