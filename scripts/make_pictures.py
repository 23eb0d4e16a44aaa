"""Makes the pictures of docs/images: python scripts/make_pictures.py [NAME ...] [--run FOLDER]

NAME is a file's name without its ending, such as lab-scene; default: all. Pictures of the lab need Chromium, as
`make test-lab` does. learning.svg is drawn from learning.json, which --run takes from a finished run of `grpo train`.
Tests make the pictures again and compare: tests/test_pictures.py, tests/lab/test_pictures.py.

Two pictures are made by the commands that measure, because their data is not in the repository:

compare.png         grpo compare --picture: docs/compare.md has the command
against-trl.png     benchmarks/learn.py --picture, on a GPU: benchmarks/results.md has the command
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pictures import learning, rollout  # noqa: E402

from helpers.pictures import IMAGES, PICTURES, picture_of, take  # noqa: E402
from helpers.visit import CHROMIUM, serving  # noqa: E402

DRAWN = {"learning": learning.picture, "rollout": rollout.picture}
MEASURED = ("against-trl", "compare")
TAKEN = {f"lab-{name}": name for name in PICTURES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to make; default: all")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run whose numbers learning.json gets")
    arguments = parser.parse_args()
    names = arguments.names or [*DRAWN, *TAKEN]
    if unknown := [name for name in names if name not in DRAWN | TAKEN]:
        parser.error(f"unknown picture {', '.join(unknown)}; known: {', '.join(DRAWN | TAKEN)}")
    if arguments.run:
        learning.keep(arguments.run)
    for name in names:
        if name in DRAWN:
            (IMAGES / f"{name}.svg").write_text(DRAWN[name]())
    return take_all([TAKEN[name] for name in names if name in TAKEN])


def take_all(names: Sequence[str]) -> int:
    """Takes pictures of the lab; returns 1 if a page did not load, and 0 otherwise."""
    if not names:
        return 0
    from playwright.sync_api import Error, sync_playwright

    failed = 0
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as empty, closing(serving(Path(empty))) as labs:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        lab = next(labs)
        for name in names:
            try:
                take(chromium, lab, name, picture_of(name))
            except Error as error:  # border: a page that does not load
                failed += 1
                print(f"make_pictures.py: lab-{name}: {str(error).splitlines()[0]}")
        chromium.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
