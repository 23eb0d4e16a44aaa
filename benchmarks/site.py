"""Size and load of the lab without a server: the static site, and the shipped run as one file.

    python benchmarks/site.py

Builds both, counts their bytes (and those of the site's files, each compressed by gzip, as web hosts send them), and
opens pages in headless Chromium with the network off: milliseconds until all of a page is drawn, the median of
--rounds, each without a cache.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from grpo.lab.site.build import build
from grpo.lab.site.export import export

CHROMIUM = "/usr/bin/chromium"
RUN = "~tiny-arithmetic"
PAGES = ("", "#/story", "#/play", "#/learn/advantage", f"#/runs/{RUN}/overview", f"#/runs/{RUN}/tokens?step=5")
UNDRAWN = ".loading, [aria-busy=true], .chart-frame:not(:has(svg)), .tex:empty, .tex-block:empty"
MEGABYTES = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chromium", default=CHROMIUM, help="path of the browser")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        site, file = Path(scratch, "site"), Path(scratch, "run.html")
        began = time.perf_counter()
        size = build(site, lambda line: None)
        print(f"site: {size / 1e6:.2f} MB, built in {time.perf_counter() - began:.0f} s")
        zipped = {path: len(gzip.compress(path.read_bytes(), mtime=0)) for path in site.rglob("*") if path.is_file()}
        print(f"  {len(zipped)} files, {sum(zipped.values()) / 1e6:.2f} MB compressed; the largest:")
        for path, length in sorted(zipped.items(), key=lambda each: -each[1])[:5]:
            print(f"  {length / 1e3:7.0f} kB  {path.relative_to(site)}")
        export(Path(scratch), RUN, file, MEGABYTES, lambda line: None)
        print(f"export of the shipped run: {file.stat().st_size / 1e6:.2f} MB")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
            addresses = {page or "/": f"{site.as_uri()}/index.html{page}" for page in PAGES}
            for name, address in {**addresses, "the export": file.as_uri()}.items():
                print(f"  {drawn(browser, address, arguments.rounds):6.0f} ms  {name}")


def drawn(browser: Browser, address: str, rounds: int) -> float:
    """Milliseconds from opening a page until nothing of it is waited for."""
    spent = []
    for _ in range(rounds):
        context = browser.new_context(offline=True, reduced_motion="reduce")
        page = context.new_page()
        began = time.perf_counter()
        page.goto(address)
        page.locator("h1").first.wait_for()
        page.locator(UNDRAWN).first.wait_for(state="detached")
        spent.append(1000 * (time.perf_counter() - began))
        context.close()
    return statistics.median(spent)


if __name__ == "__main__":
    main()
