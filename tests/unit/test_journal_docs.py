"""The format page names every table and column of the journal, and no other table."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from durastore.formats.journal import APPLICATION_ID, MAJOR, MINOR, SAMPLE_COLUMNS, SCHEMA, USER_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "journal.md").read_text(encoding="utf-8")


def test_every_table_and_column_is_on_the_page() -> None:
    with closing(sqlite3.connect(":memory:")) as conn:
        for statement in SCHEMA:
            conn.execute(statement)
        tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {table: [row[1] for row in conn.execute(f"PRAGMA table_info({table})")] for table in tables}
    named = set(re.findall(r"`([a-z_0-9]+)`", PAGE))
    assert {table for table in tables if not table.startswith("sqlite_")} <= named
    assert {column for table in tables if not table.startswith("sqlite_") for column in columns[table]} <= named
    assert columns["samples"] == ["pack_id", *SAMPLE_COLUMNS.split(", ")]


def test_the_version_is_on_the_page() -> None:
    assert f"format {MAJOR}.{MINOR:02d}" in PAGE
    assert f"`{APPLICATION_ID:#x}`" in PAGE
    assert MAJOR * 100 + MINOR == USER_VERSION
