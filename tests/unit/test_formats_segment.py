"""Manifest segments: exact round trip, and files nobody should trust."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durastore.errors import FormatUnsupported, IntegrityError
from durastore.formats.segment import (
    COLUMNS,
    SegmentContent,
    arrow_schema,
    parse_segment,
    parse_segment_table,
    render_segment,
    row_at,
    segment_covers,
    segment_runs,
    tombstone_at,
)
from durastore.model import Digest, ManifestRow, ObjectFacts, ObjectKey, Run, SampleEntry, SampleId, Tombstone, WriterId

RUN = Run.of({"model": "m"})
KEY = ObjectKey("p/packs/0123456789abcdef/000000000001-0011223344556677.tar")


def row(number: int, **changes: Any) -> ManifestRow:
    entry: dict[str, Any] = {
        "sample_id": SampleId(f"s/{number}"),
        "offset": 512 * number,
        "length": 300,
        "header_length": 200,
        "header_digest": Digest.of(b"h%d" % number),
        "schema": '[["x","F32",[3],"raw"]]',
        "meta": "{}",
        "run": RUN.digest,
        "input_digest": Digest.of(b"i%d" % number) if number % 2 else None,
        "provenance": "computed",
        "time_ns": 1_700_000_000_000_000_000 + number,
    }
    held: dict[str, Any] = {
        "key": KEY,
        "size_bytes": 1 << 40,
        "digest": Digest.of(b"object"),
        "crc64nvme": "AAAAAAAAAAA=",
        "etag": '"abc-2"',
        "version_id": None if number % 3 else "v1",
        "writer": WriterId("0123456789abcdef"),
    }
    for name, value in changes.items():
        (entry if name in entry else held)[name] = value
    return ManifestRow(entry=SampleEntry(**entry), object=ObjectFacts(**held))


TOMBSTONES = (
    Tombstone(sample_id=SampleId("gone"), key=KEY, offset=512, reason="lost"),
    Tombstone(sample_id=SampleId("é"), key=KEY, offset=0),
)
CONTENT = SegmentContent(
    rows=tuple(row(i) for i in range(7)), tombstones=TOMBSTONES, covers=(KEY, ObjectKey("p/x")), runs=(RUN,)
)


def rewritten(change: Callable[[pa.Table], pa.Table]) -> bytes:
    """The segment with another tool's hand on it."""
    file = pq.ParquetFile(pa.BufferReader(render_segment(CONTENT)))
    metadata = {k: v for k, v in (file.metadata.metadata or {}).items() if k.startswith(b"durastore.")}
    sink = io.BytesIO()
    pq.write_table(change(file.read().replace_schema_metadata(metadata)), sink)
    return sink.getvalue()


def test_round_trip() -> None:
    data = render_segment(CONTENT)
    assert parse_segment(data) == CONTENT
    assert render_segment(CONTENT) == data


def test_empty_segment_round_trips() -> None:
    assert parse_segment(render_segment(SegmentContent(rows=()))) == SegmentContent(rows=())


def test_table_gives_single_rows() -> None:
    table = parse_segment_table(render_segment(CONTENT))
    assert table.schema.names == list(COLUMNS)
    assert [row_at(table, i) for i in range(7)] == list(CONTENT.rows)
    assert tombstone_at(table, 8) == TOMBSTONES[1]
    assert segment_covers(table) == CONTENT.covers
    assert segment_runs(table) == (RUN,)
    for wrong in (lambda: row_at(table, 7), lambda: tombstone_at(table, 0)):
        with pytest.raises(IntegrityError, match="is not a"):
            wrong()


def test_concatenated_tables_still_give_rows() -> None:
    one = parse_segment_table(render_segment(CONTENT))
    assert row_at(pa.concat_tables([one, one]), 9) == CONTENT.rows[0]


def test_standard_parquet_readers_see_plain_columns() -> None:
    table = pq.read_table(pa.BufferReader(render_segment(CONTENT)))
    assert table.column("sample_id").to_pylist()[:2] == ["s/0", "s/1"]
    assert table.column("header_digest").to_pylist()[0] == bytes.fromhex(Digest.of(b"h0").hex)
    assert table.schema.equals(arrow_schema())


def test_unknown_columns_and_their_order_are_ignored() -> None:
    def change(table: pa.Table) -> pa.Table:
        table = table.append_column("later", pa.array(range(table.num_rows)))
        return table.select(list(reversed(table.schema.names)))

    assert parse_segment(rewritten(change)) == CONTENT


@pytest.mark.parametrize("version", ["2", "1.1", "10"])
def test_newer_major_is_refused(version: str) -> None:
    data = rewritten(lambda table: table.replace_schema_metadata({"durastore.format": version}))
    with pytest.raises(FormatUnsupported, match=version):
        parse_segment_table(data)


def test_newer_major_without_a_column_that_is_asked_for_is_refused_as_newer() -> None:
    def newer(table: pa.Table) -> pa.Table:
        return table.drop_columns(["etag"]).replace_schema_metadata({"durastore.format": "2"})

    with pytest.raises(FormatUnsupported):
        parse_segment_table(rewritten(newer), columns=list(COLUMNS))


@pytest.mark.parametrize(
    "metadata", [{}, {"durastore.format": ""}, {"durastore.format": "x"}, {"durastore.format": "1x"}]
)
def test_file_without_our_format_is_no_segment(metadata: dict[str, str]) -> None:
    with pytest.raises(IntegrityError):
        parse_segment_table(rewritten(lambda table: table.replace_schema_metadata(metadata)))


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_every_column_is_required_with_its_type(name: str) -> None:
    with pytest.raises(IntegrityError, match=name):
        parse_segment_table(rewritten(lambda table: table.drop_columns([name])))

    def retyped(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array([1.5] * table.num_rows))

    with pytest.raises(IntegrityError, match=name):
        parse_segment_table(rewritten(retyped))


@pytest.mark.parametrize("name", [n for n, (_, _, may_be_null) in COLUMNS.items() if not may_be_null])
def test_required_values_may_not_be_null(name: str) -> None:
    def emptied(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values = [None, *table.column(name).to_pylist()[1:]]
        return table.set_column(at, name, pa.array(values, type=table.schema.field(at).type))

    with pytest.raises(IntegrityError):
        parse_segment_table(rewritten(emptied))


ODD_VALUES: list[tuple[str, object]] = [
    ("kind", "other"),
    ("sample_id", "a//b"),
    ("key", "/x"),
    ("writer", "nobody"),
    ("offset", -1),
    ("length", 1 << 41),
    ("length", 0),
    ("header_length", 301),
    ("header_length", 0),
    ("object_size", 299),
]


@pytest.mark.parametrize("name, value", ODD_VALUES, ids=[f"{n}-{v}" for n, v in ODD_VALUES])
def test_values_that_cannot_be_are_refused_when_taken(name: str, value: object) -> None:
    def changed(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values = [value, *table.column(name).to_pylist()[1:]]
        return table.set_column(at, name, pa.array(values, type=table.schema.field(at).type))

    with pytest.raises(IntegrityError):
        parse_segment(rewritten(changed))


@pytest.mark.parametrize("key", ["durastore.runs", "durastore.covers"])
@pytest.mark.parametrize("text", ["{}", "[1]", "[", '["\\ud800"]', '["/"]', '[""]'])
def test_odd_runs_and_covers_are_refused(key: str, text: str) -> None:
    data = rewritten(lambda table: table.replace_schema_metadata({"durastore.format": "1", key: text}))
    with pytest.raises(IntegrityError):
        parse_segment(data)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 3, b"x" * 100, b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_garbage_is_no_segment(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_segment_table(data)


def test_truncation_is_refused() -> None:
    data = render_segment(CONTENT)
    for length in range(0, len(data), 37):
        with pytest.raises(IntegrityError):
            parse_segment_table(data[:length])
