"""Takes docs/images/lab-*.png from the recordings of the lab: python scripts/make_lab_pictures.py [NAME ...]

Needs Chromium, as `make test-lab` does, which takes the same pictures again and compares.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.pictures import PICTURES, picture_of, take  # noqa: E402
from helpers.visit import CHROMIUM, serving  # noqa: E402


def main() -> int:
    if unknown := set(sys.argv[1:]) - PICTURES.keys():
        print(f"make_lab_pictures.py: unknown picture {', '.join(unknown)}; known: {', '.join(PICTURES)}")
        return 2
    failed = 0
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as empty, closing(serving(Path(empty))) as labs:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        lab = next(labs)
        for name in sys.argv[1:] or PICTURES:
            try:
                take(chromium, lab, name, picture_of(name))
            except Error as error:  # border: a page that does not load
                failed += 1
                print(f"make_lab_pictures.py: {name}: {str(error).splitlines()[0]}")
        chromium.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
