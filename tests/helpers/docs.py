"""Reads the tables of the documentation."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

ALGORITHM = (DOCS / "algorithm.md").read_text()


def table_rows(section: str) -> list[list[str]]:
    """Cells of the table rows of a section, without headers and rules; no cell holds an escaped bar."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [row for row, after in zip(rows, [*rows[1:], [""]], strict=True) if "---" not in row[0] + after[0]]
