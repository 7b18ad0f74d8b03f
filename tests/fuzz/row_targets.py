"""Fuzz target of manifest rows: the values of a segment's columns, and the texts beside them. Needs pyarrow."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import pyarrow as pa

from durastore.errors import IntegrityError
from durastore.formats.segment import COLUMNS, arrow_schema, row_at, segment_covers, segment_runs, tombstone_at
from tests.fuzz.target import FuzzTarget

__all__ = ["ROW_TARGETS"]

_SCHEMA = arrow_schema()


def check_segment_row(data: bytes) -> None:
    """One row of the right column types and any values, and any `covers` and `runs`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    metadata = {f"durastore.{n}": _raw(value.get(n)) for n in ("covers", "runs") if value.get(n) is not None}
    row = {name: _as_column(value.get(name), kind, can_be_null=free) for name, (kind, _, free) in COLUMNS.items()}
    table = pa.Table.from_pylist([row], schema=_SCHEMA).replace_schema_metadata(metadata)
    for parse in (row_at, tombstone_at):
        with suppress(IntegrityError):
            parse(table, 0)
    with suppress(IntegrityError):
        assert len({key.text for key in segment_covers(table)}) <= len(data)
    with suppress(IntegrityError):
        segment_runs(table)


def _raw(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def _as_column(value: object, kind: str, *, can_be_null: bool) -> Any:
    if value is None and can_be_null:
        return None
    if kind == "int64":
        number = value if type(value) is int else len(str(value))
        return max(-(1 << 63), min(number, (1 << 63) - 1))
    text = (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace")
    return text[:16].ljust(16, b"\0") if kind == "digest" else os.fsdecode(text)


ROW_TARGETS = (FuzzTarget(name="segment_row", check=check_segment_row),)
