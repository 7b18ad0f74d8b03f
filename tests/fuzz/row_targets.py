"""Fuzz targets of rows: the values of the columns of manifest segments and failure lists. They need pyarrow."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from durastore.errors import IntegrityError
from durastore.formats.failure_list import FAILURE_COLUMNS, TEXT_LIMITS, failure_schema, parse_failure_table
from durastore.formats.segment import COLUMNS, arrow_schema, row_at, segment_covers, segment_runs, tombstone_at
from durastore.manifest.failure_lists import latest_failures
from durastore.model import Digest, id_fault
from tests.fuzz.target import FuzzTarget

__all__ = ["ROW_TARGETS", "check_failures"]

_RUN = Digest.of(b"{}")
_SCHEMA = arrow_schema()


def check_segment_row(data: bytes) -> None:
    """One row of the right column types and any values, and any `covers` and `runs`."""
    value = _object_of(data)
    if value is None:
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


def _object_of(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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


def check_failure_row(data: bytes) -> None:
    """Two rows of the right column types and any values, as a list of our run."""
    value = _object_of(data)
    if value is None:
        return
    row = {name: _as_column(value.get(name), kind, can_be_null=True) for name, (kind, _, _) in FAILURE_COLUMNS.items()}
    sink = pa.BufferOutputStream()
    metadata = {"durastore.failures": "1", "durastore.run": _RUN.hex}
    schema = failure_schema()
    pq.write_table(pa.Table.from_pylist([row, row], schema=schema).replace_schema_metadata(metadata), sink)
    with suppress(IntegrityError):
        check_failures(parse_failure_table(bytes(sink.getvalue()), run=_RUN))


def check_failures(table: pa.Table) -> None:
    """What must hold of rows that were given out."""
    latest = latest_failures(table).to_pylist()
    assert len(latest) <= table.num_rows
    for row in latest:
        assert row["sample_id"] is None or id_fault(row["sample_id"]) is None
        assert all("\x1b" not in row[name] and len(row[name]) <= limit for name, limit in TEXT_LIMITS.items())
        assert row["stored_id"] is None or row["sample_id"] in (None, row["stored_id"])


ROW_TARGETS = (
    FuzzTarget(name="segment_row", check=check_segment_row),
    FuzzTarget(name="failure_row", check=check_failure_row),
)
