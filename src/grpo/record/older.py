"""Records of older versions, shown with the tables and columns that were added since."""

from __future__ import annotations

import sqlite3

from grpo.record.columns import PROMPT, TURN

SCHEMA_VERSION = 5
OLDER = range(2, SCHEMA_VERSION)
"""Versions that can be read, but not continued."""
ADDED_COLUMNS = {
    3: {"completions": "reward >= 1 AS correct", "eval_completions": "reward >= 1 AS correct"},
    4: {"completions": "'{}' AS extra", "eval_completions": "'{}' AS extra"},
    5: {"token_arrays": "NULL AS observed, NULL AS observed_after"},
}
"""By version and table. Before `correct`, full reward stood for a right answer."""
ADDED_TABLES: dict[int, dict[str, tuple[str, ...]]] = {4: {"prompts": PROMPT}, 5: {"turns": TURN, "eval_turns": TURN}}
"""By version: table and columns. Older records show them empty."""


def show_as_current(db: sqlite3.Connection, version: int) -> None:
    """Put views of the current tables before those of an older record."""
    columns: dict[str, list[str]] = {}
    for since, added in ADDED_COLUMNS.items():
        for table, column in added.items() if since > version else ():
            columns.setdefault(table, []).append(column)
    for table, expressions in columns.items():
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {', '.join(expressions)} FROM main.{table}")
    for since, tables in ADDED_TABLES.items():
        for table, names in tables.items() if since > version else ():
            empty = ", ".join(f"NULL AS {name}" for name in names)
            db.execute(f"CREATE TEMP VIEW {table} AS SELECT {empty} WHERE 0")
