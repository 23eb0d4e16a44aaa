"""docs/lab.md against the code."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.cli.commands.lab import ExportOptions, LabOptions
from grpo.config.parse import leaves
from grpo.lab.server import STATIC

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/lab.md").read_text()
NAMES = sorted(set(re.findall(r"`(grpo(?:\.\w+)*):(\w+)`", PAGE)))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=":".join)
def test_named_functions_exist(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name))


def test_all_eleven_views_are_there() -> None:
    table = PAGE.split("## Views")[1].split("\n\n")[2]
    rows = [line.split("|")[3].strip() for line in table.splitlines()[2:]]
    assert len(rows) == 11
    run, shell = ((STATIC / "js" / file).read_text() for file in ("views/run.js", "app.js"))
    for place in (word.strip() for row in rows for word in row.split(",")):
        assert f'["{place}", ' in run or f'"{place}"]' in shell, place


def test_flags_and_pictures_exist() -> None:
    flags = {f"--{name}" for options in (LabOptions, ExportOptions) for name in leaves(options)}
    flags |= {"--no-open", "--fetch", "--system.token_groups"}
    assert set(re.findall(r"--[a-z][\w.-]*", PAGE)) <= flags
    for picture in re.findall(r"\]\((images/[^)]+)\)", PAGE):
        assert (ROOT / "docs" / picture).stat().st_size <= 300_000


def test_vendored_files_are_as_published() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/vendor.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for name, about in json.loads((STATIC / "vendor/manifest.json").read_text()).items():
        assert "LICENSE" in about["files"], name
        assert about["package"].startswith("sha512-")


def rows_of_the_chapters() -> list[list[str]]:
    tables = PAGE.split("\n## Chapters")[1].split("\n## ")[0]
    lines = [line for line in tables.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "item" and not row[0].startswith("---")]


def test_rows_name_sections_of_the_pages() -> None:
    """The second column begins with a title that the pages show."""
    pages = "".join(file.read_text() for file in sorted((STATIC / "js").rglob("*.js")))
    titles = set(re.findall(r'title[=:] ?"([^"]+)"', pages))
    elsewhere = ("Learn", "Notation", "every chapter", "end of every", "this page", "the row", "the same", "in the")
    for _, where, _ in rows_of_the_chapters():
        for place in where.split("; "):
            known = any(
                place == title or place.startswith((f"{title},", f"{title} (", f"{title}:")) for title in titles
            )
            assert known or place.startswith(("the ", *elsewhere)), where


def test_every_row_says_where_it_is_and_what_computes_it() -> None:
    for row in rows_of_the_chapters():
        assert len(row) == 3, row
        assert all(row), row
        computed = re.search(r"`grpo[\w.]*:\w+`", row[2])
        assert computed or row[2].startswith(("none", "tests", "a test", "static", "reported")), row
