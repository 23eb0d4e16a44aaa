"""docs/api.md is generated, complete and current."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import grpo
import grpo.core

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api_page", ROOT / "scripts" / "make_api_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script: ModuleType) -> None:
    current = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert current == script.page(), "run: python scripts/make_api_page.py"


def test_every_public_name_has_a_docstring_and_a_heading(script: ModuleType) -> None:
    found = [line for line in script.page().splitlines() if line.startswith("### ")]
    headings = {line.removeprefix("### ").removeprefix("class ") for line in found}
    for module in (grpo, grpo.core):
        for name in module.__all__:
            assert (getattr(module, name).__doc__ or "").strip(), f"{module.__name__}.{name}"
    assert headings == {*grpo.__all__, *grpo.core.__all__}


def test_every_public_method_has_a_docstring(script: ModuleType) -> None:
    empty = [line for line in script.page().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert [line for line in empty if ") -> " in line] == []


def test_writing_to_a_record_is_private_by_page(script: ModuleType) -> None:
    page = script.page()
    for method in ("record(", "set_status(", "add_finding(", "rewind("):
        assert f"| `{method}" not in page
    for method in ("open(", "steps()", "metrics(", "completions(", "summary()"):
        assert f"| `{method}" in page
