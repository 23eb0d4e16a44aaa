"""Pictures of the README and the docs show what their script draws. The lab's: tests/lab/test_pictures.py."""

from __future__ import annotations

import sys

import pytest

from helpers.docs import DOCS

sys.path.append(str(DOCS.parent / "scripts"))
import make_pictures as script
from pictures import learning

README = (DOCS.parent / "README.md").read_text()


@pytest.mark.parametrize("name", script.DRAWN)
def test_a_drawn_picture_is_current(name: str) -> None:
    file = DOCS / f"images/{name}.svg"
    assert file.read_text() == script.DRAWN[name](), f"run python scripts/make_pictures.py {name}"


def test_every_picture_has_a_maker_and_a_page() -> None:
    files = {file.stem: file for file in (DOCS / "images").iterdir() if file.suffix in (".png", ".svg")}
    assert files.keys() == {*script.DRAWN, *script.MEASURED, *script.TAKEN}
    pages = "\n".join(page.read_text() for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")))
    assert [file.name for file in files.values() if f"images/{file.name})" not in pages] == []


def test_the_readme_tells_the_run_that_is_drawn() -> None:
    first, *_, last = learning.read()["evals"]
    before, after = (f"{row['accuracy']:.1%} [{100 * row['low']:.0f}–{100 * row['high']:.0f}]" for row in (first, last))
    assert f"from {before} to {after} right answers" in README
    assert f"{first['worked_share']:.0%} and then {last['worked_share']:.0%} worked" in README
