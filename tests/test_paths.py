"""docs/paths.md: every test and file that it names exists."""

from __future__ import annotations

import ast
import re

import pytest

from helpers.docs import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "paths.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids="::".join)
def test_a_named_test_exists(file: str, name: str) -> None:
    functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name in functions


def test_every_path_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "tested by" not in line]
    without = [row for row in rows if "::test_" not in row]
    assert len(rows) > 15
    assert [row.split("|")[1].strip() for row in without] == [
        "`logprobs` in [benchmarks/rounding.py](../benchmarks/rounding.py)"
    ]


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAGE)
    assert len(links) > 10
    assert all((DOCS / link).is_file() for link in links)
