"""Time of nano's training in Chromium: whole steps of 8 x 8 as shipped, and the gradient by several numeric libraries.

    python benchmarks/page.py                        steps, and the gradient with typed arrays
    python benchmarks/page.py --libraries FOLDER     also with libraries from FOLDER, a node_modules made by
        npm install @tensorflow/tfjs@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0 @jax-js/jax@0.1.25 wabt@1.0.39

Steps run in the lab's worker. The gradient is that of the same 64 completions for every candidate, and must agree with
the shipped one to 1e-3. Candidates take turns; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from playwright.sync_api import sync_playwright

from grpo.lab.connection import listen, web_server
from grpo.lab.nano_files import nano_files
from grpo.lab.server import STATIC, make_app

PAGES = Path(__file__).with_name("page")
SCRIPTS = (
    "@tensorflow/tfjs/dist/tf.min.js",
    "@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
    "wabt/index.js",
)
CANDIDATES: dict[str, tuple[str, str]] = {
    "typed arrays, float32 (shipped)": ("typed", "plain"),
    "typed arrays, activations in float64": ("typed", "double"),
    "the same, products in WebAssembly SIMD": ("typed", "simd"),
    "TensorFlow.js, cpu": ("tfjs", "cpu"),
    "TensorFlow.js, wasm": ("tfjs", "wasm"),
    "jax-js, wasm": ("jax", "wasm"),
}
WITHOUT_LIBRARIES = ("plain", "double")
STEPS = """async ({ steps, seed }) => {
  const nano = await (await import("/static/js/nano/client.js")).openNano();
  const found = [];
  await nano.reset();
  const began = performance.now();
  await nano.train({ steps, seed }, (step) => found.push(step)).done;
  return { seconds: (performance.now() - began) / 1000, steps: found.map(({ seconds }) => seconds),
    first: found.slice(0, 5).map(({ accuracy }) => accuracy), last: found.slice(-5).map(({ accuracy }) => accuracy) };
}"""
PREPARE = """async ([file, option]) => {
  window.batch ??= await (await import("/page/batch.js")).makeBatch();
  const began = performance.now();
  const compute = await (await import(`/page/${file}.js`)).make(window.batch, option);
  const found = await compute();
  const expected = window.batch.gradient.flat;
  const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  (window.made ??= {})[`${file} ${option}`] = compute;
  const start = performance.now() - began;
  return { start, difference: norm(found.map((value, i) => value - expected[i])) / norm(expected) };
}"""
MEASURE = """async ([file, option]) => {
  const compute = window.made[`${file} ${option}`];
  if (file === "tfjs") await tf.setBackend(option);
  const began = performance.now();
  await compute();
  return performance.now() - began;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", type=Path, help="node_modules with the packages above")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        measure_steps(browser.new_page(), arguments.rounds)
        measure_gradients(browser.new_page(), arguments.libraries, arguments.rounds)
        browser.close()


def measure_steps(page: Any, rounds: int) -> None:
    listener = listen("127.0.0.1", 0)
    server = web_server(make_app(Path("no-runs")))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")
    for seed in range(1, min(rounds, 3) + 1):
        found = page.evaluate(STEPS, {"steps": 20, "seed": seed})
        step = 1000 * statistics.median(found["steps"])
        first, last = (statistics.fmean(found[part]) for part in ("first", "last"))
        print(
            f"20 steps, seed {seed}: {found['seconds']:.1f} s ({step:.0f} ms a step), {first:.0%} -> {last:.0%} right"
        )
    page.close()
    server.should_exit = True
    thread.join()


class Variants(SimpleHTTPRequestHandler):
    """Serves the lab's modules as they are and in two variants, the candidates, and the libraries."""

    libraries: Path | None = None

    def do_GET(self) -> None:
        place = urlparse(self.path).path
        kind, _, path = place.lstrip("/").partition("/")
        body = self.content(kind, path)
        self.send_response(404 if body is None else 200)
        types = {".js": "text/javascript; charset=utf-8", ".json": "application/json", ".wasm": "application/wasm"}
        self.send_header("Content-Type", types.get(Path(place).suffix, "text/html"))
        self.end_headers()
        self.wfile.write(body or b"")

    def content(self, kind: str, path: str) -> bytes | None:
        if kind == "nano.json":
            return json.dumps(nano_files()).encode()
        if kind == "libraries" and self.libraries:
            return (self.libraries / path).read_bytes()
        if kind == "page":
            return (PAGES / (path or "index.html")).read_bytes()
        if kind not in ("plain", "double", "simd"):
            return None
        text = (STATIC / path).read_text()
        if kind == "double":
            text = text.replace("Float32Array", "Float64Array")
        if path.endswith("nano/matmul.js") and kind == "simd":
            products, others = (PAGES / "simd.js").read_text(), text[text.index("function dot") :]
            text = products + others
        elif path.endswith("nano/matmul.js"):
            text += "\nexport const ready = null;\n"
        return text.encode()

    def log_message(self, *args: Any) -> None:
        """No line per request."""


def measure_gradients(page: Any, libraries: Path | None, rounds: int) -> None:
    Variants.libraries = libraries
    server = ThreadingHTTPServer(("127.0.0.1", 0), Variants)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page.goto(f"http://127.0.0.1:{server.server_address[1]}/page/")
    for script in SCRIPTS if libraries else ():
        page.add_script_tag(url=f"/libraries/{script}")
    chosen = {name: how for name, how in CANDIDATES.items() if libraries or how[1] in WITHOUT_LIBRARIES}
    started = {name: page.evaluate(PREPARE, how) for name, how in chosen.items()}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, how in chosen.items():
            times[name].append(page.evaluate(MEASURE, how))
    shipped = statistics.median(next(iter(times.values())))
    print("| gradient of 8 x 8 | ms | of shipped | first call, ms | difference |\n|---|---|---|---|---|")
    for name, found in times.items():
        middle, start, gap = statistics.median(found), started[name]["start"], started[name]["difference"]
        assert gap < 1e-3, name
        spread = f"{middle:.0f} ({min(found):.0f}-{max(found):.0f})"
        print(f"| {name} | {spread} | {middle / shipped:.2f} | {start:.0f} | {gap:.0e} |")
    server.shutdown()


if __name__ == "__main__":
    main()
